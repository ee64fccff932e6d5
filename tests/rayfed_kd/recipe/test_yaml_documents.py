"""YAML as recipes use it: plain values, of bounded size."""

import math

import pytest
import yaml

from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.yaml_documents import MOST_BYTES, load_yaml, yaml_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("-.5E3", -500.0),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("0x10", 16),
        ("9223372036854775807", 2**63 - 1),
        ("2020-01-01", "2020-01-01"),
        ("2020-99-99", "2020-99-99"),
        ("[yes, ~, !!str 1, !!float 1]", [True, None, "1", 1.0]),
        ("{a: &x [1], b: *x}", {"a": [1], "b": [1]}),
        ("a: &x {c: 1}\nb: {<<: *x, d: 2}", {"a": {"c": 1}, "b": {"c": 1, "d": 2}}),
        ("a: &x {c: 1}\nb: {<<: *x, c: 2}", {"a": {"c": 1}, "b": {"c": 2}}),
        ("{1: a, '1': b}", {1: "a", "1": "b"}),
    ],
)
def test_value_is_read(text, value):
    assert load_yaml(text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".nan", "not YAML: NaN is no number (line 1, column 1)"),
        ("1e400", "not YAML: 1e400 is too large (line 1, column 1)"),
        ("a:\n  9223372036854775808", "9223372036854775808 needs more than 64 bits (line 2, column 3)"),
        ("7" * 5000, "is no int (line 1, column 1)"),
        ("!!int abc", "'abc' is no int (line 1, column 1)"),
        ("!!float ''", "'' is no float"),
        ("!!set {a}", "could not determine a constructor for the tag 'tag:yaml.org,2002:set'"),
        ("!!python/name:os.system x", "could not determine a constructor"),
        ("[" * 5000, "too many levels of lists and keys"),
        ("x" * (MOST_BYTES + 1), "1,048,577 characters of YAML; expected at most 1,048,576"),
        ("a: 1\nb: {c: 2, c: 3}", "the key c stands twice (line 2, column 11)"),
        ("a: 1\n'a': 2", "the key a stands twice (line 2, column 1)"),
        ("a: b: c", "not YAML: mapping values are not allowed here (line 1, column 5)"),
    ],
)
def test_text_is_refused_with_what_and_where(text, message):
    with pytest.raises(RecipeError) as told:
        load_yaml(text)
    assert message in str(told.value)
    assert "\n" not in str(told.value)


def test_yaml_of_others_is_as_it_was():
    """The tables of tags belong to PyYAML's class; other packages use it in the same process."""
    assert yaml.safe_load("!!set {a}") == {"a"}
    assert yaml.safe_load("2020-01-01").year == 2020


@pytest.mark.parametrize(
    "text", ["1e-4", "1e5", ".5", "1_000", "yes", "null", "2020-01-01", "0x1f", "é", "a: b", "\n"]
)
def test_a_text_is_written_so_that_it_is_read_back_as_a_text(text):
    """PyYAML alone writes 1e-4 without quotes, as its own loader takes it for a text; ours reads a number."""
    value = {"label": text, "numbers": [0.0001, 3, True, None]}
    assert load_yaml(yaml_text(value)) == value
