"""Every mistake in a recipe is answered in one message: what, where, what was expected, the nearest."""

from pathlib import Path

import pytest
import yaml
from small_recipes import FOUR_CLIENTS, small_recipe

from rayfed_kd.errors import RayfedError, RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.recipe.loading import load_recipe

GOOD = {**small_recipe(FOUR_CLIENTS, "fedkf"), "rounds": 1, "sampling": {"fraction": 0.5}}

BAD = yaml.safe_load(Path(__file__).with_name("bad_recipes.yaml").read_text(encoding="utf8"))


IMAGES = "data={name: synthetic, samples: 40, classes: 2, shape: [1, 32, 32]}"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("batchs", "Did you mean method.generator.batches?"),
        ("widht", "Did you mean method.generator.width?"),
        ("foo", "There are: latent, width. Beside them: batch_size, batches, diversity, epochs, lr, "),
    ],
)
def test_unknown_option_of_a_generator_is_answered_with_its_own_and_the_methods(option, message):
    recipe = {**GOOD, "method": {"name": "kdia"}, "model": {"name": "simple_cnn"}}
    with pytest.raises(RayfedError) as caught:
        prepare(recipe, [IMAGES, f"method.generator.{option}=3"])
    assert f"method.generator.{option} is no option of fedcg_feature." in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(("override", "message"), BAD.items(), ids=BAD)
def test_bad_recipe_is_answered_in_one_message(override, message):
    with pytest.raises(RayfedError) as caught:
        prepare({**GOOD, "seed": 1}, [override])
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("schedule", ["{name: fedbuff}", "{name: quorum, late: next_round}"])
def test_schedule_that_no_clock_would_make_fit_the_method_is_answered_with_that_alone(schedule):
    with pytest.raises(RayfedError) as caught:
        prepare({**GOOD, "method": {"name": "dsfl"}}, [f"schedule={schedule}"])
    assert "dsfl's rounds have several exchanges" in str(caught.value)
    assert "clock" not in str(caught.value)


def test_good_recipe_passes_every_check():
    prepared = prepare(GOOD)
    assert prepared.recipe.rounds == 1
    assert len(prepared.setting.partition.train) == 4


def test_message_names_the_file(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("method: {name: fedavg}\nroundz: 3\n")
    with pytest.raises(
        RayfedError, match=r"recipe.yaml: roundz is no key of a recipe. Did you mean rounds\?"
    ):
        prepare(path)


def test_missing_recipe_names_a_near_one(tmp_path):
    (tmp_path / "quickstart.yaml").write_text("")
    with pytest.raises(RayfedError, match=r"no such recipe file. Did you mean .*quickstart.yaml\?"):
        prepare(tmp_path / "quikstart.yaml")


def test_runs_folder_in_place_of_a_recipe_is_told(tmp_path):
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(RayfedError, match=r"this is a run's folder; .* `rayfed-kd resume` goes on"):
        prepare(tmp_path)


def test_search_space_in_place_of_a_recipe_is_told(tmp_path):
    (tmp_path / "space.yaml").write_text("space: {method.gamma: {uniform: [0, 1]}}")
    with pytest.raises(RayfedError, match="this is a search space: rayfed-kd tune RECIPE --space takes it"):
        prepare(tmp_path / "space.yaml")


def test_other_data_do_not_keep_the_recipes_fraction_silently():
    recipe = {"method": {"name": "fedavg"}, "data": {"name": "mnist", "fraction": 0.1}}
    expected = "data.fraction=1 beside it for all training images, or data.fraction=0.1 to keep the share"
    with pytest.raises(RecipeError, match=expected):
        prepare(recipe, ["data.name=digits", "partition={name: iid, clients: 10}"])
    for said, fraction in (("data.fraction=1", 1.0), ("data.fraction=0.1", 0.1)):
        for overrides in (["data.name=digits", said], [said, "data.name=digits"]):
            resolved = load_recipe(recipe, overrides)
            assert (resolved.data.fraction, resolved.fraction_fault) == (fraction, "")
    assert load_recipe(recipe, ["data={name: digits}"]).data.fraction == 1.0
    assert load_recipe(recipe, ["data.name=mnist", "rounds=3"]).data.fraction == 0.1
    assert load_recipe({**recipe, "data": {"name": "mnist"}}, ["data.name=digits"]).data.fraction == 1.0


def test_kinds_of_parts_that_are_numbers_are_refused():
    """YAML reads `0:` as a number; checks then name such a key in the path, beside lists and their places."""
    with pytest.raises(RecipeError) as refused:
        load_recipe({**GOOD, "codec": {"down": {0: [], 2**63: {-1: None}}}})
    assert "codec.down.0 = 0: expected text" in str(refused.value)
