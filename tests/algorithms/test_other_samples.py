"""Every method on text and on rows of a table works, or is refused because it makes images."""

import pytest
from runs import run_in_process
from small_recipes import ALONE, FOUR_CLIENTS, OPTIONS, small_recipe

from rayfed_kd.algorithms import METHODS
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare

IMAGES = {
    "fedkf": "images",
    "datafree": "images",
    "dafkd": "images",
    "fedftg": "images",
    "fedcog": "images",
    "dense": "images",
    "coboosting": "images",
    "fedktl": "images",
    "fedrevive": "images",
    "kdia": "feature maps of images",
    "fedsd2c": "crops of images",
}
TEXT = {"name": "synthetic_text", "samples": 120, "vocabulary": 64, "length": 8}
TABLE = {"name": "synthetic_table", "samples": 120}
CODES = {**TABLE, "categories": "codes"}
# Options of methods whose defaults name three layers behind LeNet's convolutions; these models have F1 to F3.
LAYERS = {
    "fedd2s": {"dropping": ["F2", "F3"], "z0": 1},
    "fedper": {"personal": ["F2", "F3"]},
    "fedper_plus": {"dropping": ["F2", "F3"], "z0": 1},
    "fedrep": {"personal": ["F2", "F3"], "head_epochs": 1},
    "fedrep_plus": {"dropping": ["F2", "F3"], "z0": 1, "head_epochs": 1},
}
# A server's model behind the clients' first layer sees numbers; a whole one sees what clients see.
BEHIND = {"cut": "F1", "server": {"name": "dense", "units": [8]}}
SERVERS = {
    "fedgkt": {**BEHIND, "server_epochs": 1},
    "fedict": BEHIND,
    "fedgem": {},
    "fedgems": {"server_batch_size": 64},
}
KINDS = {
    "text": ({"name": "word_bag", "width": 8, "hidden": [8]}, TEXT),
    "rows of a table": ({"name": "row_mlp", "width": 2, "units": [8]}, CODES),
}


def recipe_of(method, kind):
    model, data = KINDS[kind]
    base = {**FOUR_CLIENTS, "model": model, "data": data, "rounds": 2, "sampling": {"fraction": 1.0}}
    options = {**OPTIONS.get(method, {}), **LAYERS.get(method, {}), **SERVERS.get(method, {})}
    if method in ("fedgem", "fedgems"):
        options["server"] = model
    recipe = small_recipe(base, method)
    changes = ALONE if method == "centralized" else {}
    return {**recipe, **changes, "model": model, "data": data, "method": {"name": method, **options}}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", sorted(set(METHODS) - set(IMAGES)))
def test_a_method_that_makes_no_images_runs(method, kind):
    assert_runs(method, kind)


@pytest.mark.parametrize(
    ("method", "kind"),
    [("fedavg", "rows of a table"), ("fedict", "text"), ("fedgems", "text"), ("fedgen", "text")],
)
def test_methods_of_each_family_run(method, kind):
    """One average, one server behind a layer, one with public data, one generator of features."""
    assert_runs(method, kind)


def assert_runs(method, kind):
    rows = run_in_process(recipe_of(method, kind)).tables["metrics"].to_pylist()
    assert rows[-1]["round"] == 2
    assert 0 <= rows[-1]["amp"] <= 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", IMAGES)
def test_a_method_that_makes_images_is_refused_before_the_first_round(method, kind):
    with pytest.raises(RecipeError) as told:
        prepare(recipe_of(method, kind))
    cure = "expected another method, as method={name: fedavg}"
    said = f"method.name: {method} generates {IMAGES[method]}; this data set has {kind}; {cure}"
    assert str(told.value) == said
