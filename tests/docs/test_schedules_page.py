"""docs/guide/schedules.md: its tables name every schedule, clock and rule, and all options and defaults."""

import re

import pytest
from paths import ROOT
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from rayfed_kd.recipe.timing import CLOCKS, SCHEDULES
from rayfed_kd.timing.staleness import STALENESS_RULES

PAGE = (ROOT / "docs/guide/schedules.md").read_text(encoding="utf8")
CLASSES = {
    "Schedules": {name: SCHEDULES.find(name, "") for name in SCHEDULES},
    "Clocks": {name: CLOCKS.find(name, "") for name in CLOCKS},
}


def rows(heading):
    """The cells of all tables below a heading, without the tables' own headings."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    tables = re.findall(r"^(\|.*\|)$", section, re.MULTILINE)
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in tables]


def shown(default):
    if default is PydanticUndefined:
        return "required"
    if isinstance(default, BaseModel):
        return type(default).__name__.lower()
    return "null" if default is None else str(default)


@pytest.mark.parametrize("heading", CLASSES)
def test_every_name_has_a_row(heading):
    assert set(CLASSES[heading]) <= {row[0] for row in rows(heading)}


@pytest.mark.parametrize("heading", CLASSES)
def test_every_option_has_a_row_with_its_default_and_whose_it_is(heading):
    """FedAsync has no choice of `normalisation` and `update`: they are no options of it."""
    told = {row[0]: row for row in rows(heading)}
    fixed = {("fedasync", "normalisation"), ("fedasync", "update")}
    for name, kind in CLASSES[heading].items():
        for option, field in kind.options_model().model_fields.items():
            if (name, option) in fixed:
                continue
            _, owners, defaults, _ = told[option]
            if owners.startswith("all but"):
                assert name not in owners, (name, option)
            else:
                assert f"{name}" in re.findall(r"\w+", owners), (name, option)
            usual, *exceptions = defaults.split("; ")
            for exception in exceptions:
                whose, value = exception.split(": ")
                usual = value if name in re.findall(r"\w+", whose) else usual
            assert usual == shown(field.default), (name, option)


def test_every_staleness_rule_has_a_row_with_its_defaults():
    told = {row[0]: row for row in rows("Staleness rules")}
    for name in STALENESS_RULES:
        fields = STALENESS_RULES.find(name, "").model_fields
        assert told[name][2:] == [shown(fields[o].default) if o in fields else "" for o in ("a", "b")]
