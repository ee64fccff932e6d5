"""Groups of architectures in a recipe: how many they are, what is refused, what the server's model is."""

import re

import pytest

from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.sections.client_models import ClientModelsRecipe, groups

RECIPE = {"method": {"name": "fedproto"}, "partition": {"clients": 12}, "sampling": {"count": 3}}


@pytest.mark.parametrize("group", groups())
def test_a_groups_name_says_how_many_models_it_has(group):
    """A further number tells HtFLlib's variants apart."""
    said = int(re.search(r"-(\d+)", group)[1])
    members = ClientModelsRecipe(group=group).members
    assert len(members) == len({str(member) for member in members}) == said


def test_clients_have_the_groups_models_in_turn_and_the_server_one_of_the_same_features():
    recipe = load_recipe({**RECIPE, "model": {"name": "mlp"}, "client_models": {"group": "small-3"}})
    own = recipe.client_models
    assert [own.of(client) for client in range(4)] == [0, 1, 2, 0]
    assert [member.options["features"] for member in own.members] == [512] * 3
    assert recipe.shared_model.options == {"base": {"name": "mlp"}, "features": 512, "form": "linear"}
    assert load_recipe(recipe.model_dump()).client_models == own


def test_without_a_group_or_a_length_models_are_as_they_are_listed():
    recipe = load_recipe({**RECIPE, "client_models": {"models": [{"name": "lenet5"}, {"name": "mlp"}]}})
    assert [member.name for member in recipe.client_models.members] == ["lenet5", "mlp"]
    assert recipe.shared_model == recipe.model


def test_features_of_their_own_are_kept_and_dropout_is_off_all_the_same():
    members = ClientModelsRecipe(group="HtFE-img-4", features="own").members
    assert [(member.name, member.options["features"]) for member in members] == [("projected", None)] * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group": "HtFE-img-44"}, r"group = 'HtFE-img-44': expected one of .*Did you mean HtFE-img-4"),
        (
            {"group": "small-2", "models": [{"name": "mlp"}]},
            "expected either models, one at least, or a group",
        ),
        ({}, "expected either models, one at least, or a group"),
        ({"group": "small-2", "weights": {"resnet18": "a.pth"}}, r"weights\.resnet18: none of these models"),
        ({"group": "small-2", "features": 0}, r"client_models\.features = 0"),
        ({"group": "HtFE-img-9", "assign": [0, 9] * 6}, r"assign: 9 is no place in a list of 9 models"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe({**RECIPE, "client_models": changes})


def test_more_models_than_clients_are_refused():
    with pytest.raises(RecipeError, match=r"client_models\.group: 10 for 4 clients"):
        load_recipe({**RECIPE, "partition": {"clients": 4}, "client_models": {"group": "HtM-img-10"}})
