"""Search spaces: what a file may say, what it draws, and what a recipe makes of it."""

import json
import time
from functools import partial

import pytest
import yaml
from paths import ROOT
from small_recipes import refused

from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.tuning.space import coefficient_overrides, parse_space, read_space
from rayfed_kd.tuning.tune import accept_coefficients

SMALL = ["data.fraction=0.2", "method.generator.width=4"]
GOOD = {
    "method.gamma": {"uniform": [0, 2]},
    "method.lambda1": {"loguniform": [0.01, 1.0]},
    "method.warmup_rounds": {"randint": [0, 3]},
    "method.teacher": {"choice": ["oca", "aca"]},
}


def space(folder, keys, **more):
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump({"space": keys, **more}, sort_keys=False))
    return read_space(path)


def check(found, *overrides):
    found.check(partial(accept_coefficients, prepare(ROOT / "configs/quickstart.yaml", [*SMALL, *overrides])))


def test_every_draw_lies_in_its_range_and_every_end_is_reached(tmp_path):
    found = space(tmp_path, GOOD)
    trials = [found.draw(1, number) for number in range(200)]
    assert all(
        0 <= trial["method.gamma"] <= 2 and isinstance(trial["method.gamma"], float) for trial in trials
    )
    assert all(0.01 <= trial["method.lambda1"] <= 1 for trial in trials)
    assert {trial["method.warmup_rounds"] for trial in trials} == {0, 1, 2, 3}
    assert {trial["method.teacher"] for trial in trials} == {"oca", "aca"}


def test_loguniform_has_half_its_draws_below_the_geometric_mean(tmp_path):
    """sqrt(.01 * 1) = .1: 200 of 400 expected, deviation 10; and every draw differs."""
    found = space(tmp_path, {"method.lambda1": {"loguniform": [0.01, 1.0]}})
    drawn = [found.draw(1, number)["method.lambda1"] for number in range(400)]
    assert 160 < sum(value < 0.1 for value in drawn) < 240
    assert len(set(drawn)) == 400


def test_draws_depend_on_seed_number_and_key_alone(tmp_path):
    whole, part = space(tmp_path, GOOD), space(tmp_path, {"method.gamma": GOOD["method.gamma"]})
    assert whole.draw(1, 7) == whole.draw(1, 7)
    assert whole.draw(1, 7)["method.gamma"] == part.draw(1, 7)["method.gamma"]
    assert whole.draw(1, 7) != whole.draw(1, 8)
    assert whole.draw(1, 7) != whole.draw(2, 7)


def test_grid_is_every_combination_the_last_key_first(tmp_path):
    found = space(tmp_path, {"a.x": {"choice": ["p", "q"]}, "a.y": {"randint": [1, 3]}})
    assert [tuple(trial.values()) for trial in found.grid()] == [
        ("p", 1),
        ("p", 2),
        ("p", 3),
        ("q", 1),
        ("q", 2),
        ("q", 3),
    ]


def test_grid_of_a_continuous_key_is_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"method.gamma: uniform has no list of values; expected choice or"):
        list(space(tmp_path, GOOD).grid())


def test_recipe_of_a_trial_has_the_coefficients_to_the_last_bit(tmp_path):
    found = space(tmp_path, {**GOOD, "method.generator": {"choice": [{"width": 4}, {"width": 8}]}})
    for number in range(50):
        drawn = found.draw(3, number)
        recipe = load_recipe(ROOT / "configs/quickstart.yaml", coefficient_overrides(drawn))
        assert {f"method.{key}": value for key, value in recipe.method.options.items()} == drawn


def test_small_numbers_and_texts_like_numbers_survive_as_overrides():
    values = {"method.a": 1e-07, "method.b": 3.0000000000000004e-05, "method.c": "1", "method.d": None}
    recipe = load_recipe({"method": {"name": "x"}}, coefficient_overrides(values))
    assert recipe.method.options == {"a": 1e-07, "b": 3.0000000000000004e-05, "c": "1", "d": None}
    assert isinstance(recipe.method.options["a"], float)


@pytest.mark.parametrize(("content", "message"), refused("space files"))
def test_bad_space_file_is_answered_with_its_name(content, message, tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    with pytest.raises(RecipeError) as caught:
        read_space(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_missing_space_file_names_a_near_one(tmp_path):
    (tmp_path / "space.yaml").write_text("")
    with pytest.raises(RecipeError, match=r"no such space file. Did you mean .*space.yaml\?"):
        read_space(tmp_path / "spase.yaml")


def test_space_file_that_is_no_yaml_is_told(tmp_path):
    (tmp_path / "space.yaml").write_text("space: {")
    with pytest.raises(RecipeError, match="not YAML"):
        read_space(tmp_path / "space.yaml")


@pytest.mark.parametrize(("keys", "message"), refused("space keys"))
def test_key_that_does_not_go_with_the_recipe_is_answered_before_a_search(keys, message, tmp_path):
    with pytest.raises(RecipeError) as caught:
        check(space(tmp_path, keys))
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "space.yaml"))


def test_space_of_many_keys_and_a_choice_of_many_values_are_read_in_seconds():
    """Each key against each would be 4e8 comparisons, which take a minute."""
    entries = {f"method.a{number}": {"uniform": [0.0, 1.0]} for number in range(20_000)}
    entries["method.b"] = {"choice": list(range(50_000))}
    begun = time.process_time()
    assert len(parse_space({"space": entries}, "made up").distributions) == 20_001
    assert time.process_time() - begun < 15


def test_good_space_passes_and_overrides_are_heeded(tmp_path):
    found = space(tmp_path, {"sampling.count": {"randint": [1, 10]}})
    check(found, "sampling={count: 2}")
    with pytest.raises(RecipeError, match=r"sampling.count = 10: more than partition.clients = 4"):
        check(found, "sampling={count: 2}", "partition.clients=4")


def made_up(path):
    """The recipe's own data need not be there: as many channels, pixels and classes."""
    name = load_recipe(path).data.name
    if name == "digits":
        return []
    shape = [1, 28, 28] if name == "mnist" else [3, 32, 32]
    data = {"name": "synthetic", "samples": 4000, "test_samples": 100, "classes": 10, "shape": shape}
    return [f"data={json.dumps(data)}"]


SPACES = sorted(ROOT.glob("configs/tune/*.yaml"))


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_spaces_of_configs_go_with_the_recipe_that_they_name(path):
    words = path.read_text().splitlines()[0].split("rayfed-kd tune ")[1].split()
    assert words[1:] == ["--space", str(path.relative_to(ROOT))]
    found = read_space(path)
    recipe = load_recipe(ROOT / words[0], made_up(ROOT / words[0]))
    assert path.stem in (recipe.method.name, "quickstart")
    found.check(partial(accept_coefficients, prepare(recipe.model_dump())))
    assert json.loads(json.dumps(dict(found.entries))) == found.entries
