"""Overrides in Python give the recipe that the same words give on a command line."""

from pathlib import Path

import numpy as np
import pytest

from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.overrides import override_lines
from rayfed_kd.recipe.yaml_documents import load_yaml

AS_WORDS = ["method={name: fedprox, mu: 0.001}", "partition.alpha=0.5", "rounds=3"]
AS_MAPPING = {"method": {"name": "fedprox", "mu": 1e-3}, "partition.alpha": 0.5, "rounds": 3}


def test_mapping_and_keywords_are_the_words_of_a_command_line():
    expected = load_recipe("quickstart", AS_WORDS)
    assert load_recipe("quickstart", override_lines(AS_MAPPING)) == expected
    assert load_recipe("quickstart", override_lines([], AS_MAPPING)) == expected
    assert override_lines(AS_WORDS) == AS_WORDS


def test_keywords_win():
    lines = override_lines({"rounds": 3, "seed": 2}, {"rounds": 4})
    assert (load_recipe("quickstart", lines).rounds, load_recipe("quickstart", lines).seed) == (4, 2)


TEXTS = ["1e-4", "yes", "", " a ", "a: b, {c}", "2026-01-01", "~", "#", "é\n"]


@pytest.mark.parametrize(
    "value", [*TEXTS, 1e-05, 1e300, float("inf"), True, None, -3, [1, [2.5, "x"]], {"a": {"b": []}}]
)
def test_value_arrives_as_it_is(value):
    (line,) = override_lines({"key": value})
    read = load_yaml(line.removeprefix("key="))
    assert (read, type(read)) == (value, type(value))


def test_paths_tuples_and_numpys_values_are_taken():
    changes = {"results.folder": Path("/runs/a"), "partition.alpha": np.float32(0.5), "seed": np.int64(4)}
    changes |= {"attack.name": "paf", "attack.clients": np.array([1, 3])}
    recipe = load_recipe("quickstart", override_lines(changes))
    assert recipe.attack.clients == [1, 3]
    assert (recipe.results.folder, recipe.partition.options["alpha"], recipe.seed) == ("/runs/a", 0.5, 4)
    as_mapping = {"method": {"name": "fedavg"}, "results": {"folder": Path("/runs/a")}, "seed": np.int64(4)}
    assert load_recipe(as_mapping).results.folder == "/runs/a"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("rounds=3", r"overrides: 'rounds=3'; expected a list, as \['rounds=3'\]"),
        (3, "overrides: 3; expected a list"),
        ([("rounds", 3)], "expected a text, as 'rounds=3'"),
        ({"rounds": object()}, "overrides: rounds = <object .*: expected numbers, texts, lists and mappings"),
        ({"rouns": 3}, "rouns is no key of a recipe. Did you mean rounds"),
    ],
)
def test_what_is_no_override_is_told(overrides, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe("quickstart", override_lines(overrides))
