"""What every method must do, over the registry: `rayfed_kd.testing.RULES`, and who holds them."""

import pytest
from small_recipes import small_recipe

from rayfed_kd.algorithms import METHODS
from rayfed_kd.testing import SMALL, check_method

TWO_MODELS = [{"name": "lenet5"}, {"name": "bottleneck_resnet", "width": 4}]
BEHIND_ONE_CUT = [
    {"name": "bottleneck_resnet", "width": 4},
    {"name": "bottleneck_resnet", "width": 4, "blocks": [1, 2, 1]},
]
SERVER = {"server": {"name": "resnet8", "width": 4}, "server_batch_size": 64}
CUT = {"server": {"name": "bottleneck_resnet", "blocks": [1, 1, 1], "width": 4}, "server_epochs": 1}
# Methods with several exchanges a round, whose clients may have any models.
SEVERAL = {
    **dict.fromkeys(("fedmd", "cronus", "dsfl"), ({}, TWO_MODELS)),
    "fedgem": (SERVER, TWO_MODELS),
    "fedgems": ({**SERVER, "plateau": {"patience": 0}}, TWO_MODELS),
    **dict.fromkeys(("fedgkt", "fedict"), (CUT, BEHIND_ONE_CUT)),
}


@pytest.mark.parametrize("name", METHODS)
def test_method_keeps_the_contract(name):
    recipe = small_recipe(dict(SMALL), name)
    method = recipe.pop("method")
    check_method(method.pop("name"), recipe, method)


@pytest.mark.parametrize("name", SEVERAL)
def test_every_step_of_a_round_keeps_the_contract_at_clients_of_two_architectures(name):
    options, models = SEVERAL[name]
    local = {"epochs": 1, "batch_size": 32, "optimizer": {"name": "adam", "lr": 0.01}}
    check_method(name, {"model": models[0], "client_models": {"models": models}, "local": local}, options)
