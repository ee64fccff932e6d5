"""The page for users of PFLlib: each word of its tables is one that a recipe takes."""

import re

import pytest
from pages import PAGES
from paths import ROOT

from rayfed_kd.algorithms import METHODS
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.setting.blueprint import make_method, read_names

PAGE = PAGES["guide/from-pfllib.md"]
ROWS = [
    line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| `") and "| here |" not in line
]
WORDS = sorted({word for row in ROWS for word in re.findall(r"`([a-z_.]+=[^`]+)`", row[1])})


def test_every_row_names_something_or_says_why_not():
    """An option without a counterpart has a remark."""
    assert len(WORDS) > 25
    for row in ROWS:
        assert re.search(r"`[a-z_.]+=", row[1]) or (not row[1].strip() and row[2].strip()), row


@pytest.mark.parametrize("word", WORDS)
def test_every_word_is_taken(word):
    recipe = load_recipe(ROOT / "configs/quickstart.yaml", [word])
    read_names(recipe)
    make_method(METHODS[recipe.method.name], recipe.method)
