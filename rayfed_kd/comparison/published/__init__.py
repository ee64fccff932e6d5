"""The papers' result tables, as data: one YAML file per paper, flat records.

Percent as printed, FM as its real value, `mean` null where a paper only bounds it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayfed_kd.errors import RecipeError, nearest
from rayfed_kd.recipe.loading import load_yaml

FOLDER = Path(__file__).parent
_VALUES = ("metric", "mean", "std")


def published_rows(paper: str, table: str, where: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The records of a paper's table whose keys equal `where`'s, in the paper's order.

    Raises: RecipeError if there is no such paper, table, key or record.
    """
    papers = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    if paper not in papers:
        raise RecipeError(
            f"published.paper: {paper!r}: there are {', '.join(papers)}", hint=nearest(paper, papers)
        )
    tables = {
        found["id"]: found for found in load_yaml((FOLDER / f"{paper}.yaml").read_text("utf8"))["tables"]
    }
    if table not in tables:
        raise RecipeError(f"published.table: {table!r}: {paper} has {', '.join(tables)}")
    rows: list[dict[str, Any]] = tables[table]["rows"]
    keys = {key for row in rows for key in row}
    for key in where:
        if key not in keys:
            there = ", ".join(sorted(keys))
            raise RecipeError(f"published.where: no {key!r} in {paper}'s table {table}; there are {there}")
    chosen = [row for row in rows if all(row.get(key) == value for key, value in where.items())]
    if not chosen:
        raise RecipeError(f"published.where: no row of {paper}'s table {table} has {dict(where)}")
    return chosen


def published_lines(paper: str, table: str, where: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One line per system: its name with what tells it from others, and its metrics.

    Returns: {"label": str, "values": metric -> (mean or None, std or None)} each.
    Raises: as `published_rows`.
    """
    lines: dict[str, dict[str, Any]] = {}
    for row in published_rows(paper, table, where):
        told = [f"{k} {v}" for k, v in row.items() if k not in (*_VALUES, "method", "more_than", *where)]
        label = ", ".join([str(row.get("method", "")), *told]).strip(", ")
        line = lines.setdefault(label, {"label": label, "values": {}})
        line["values"][row.get("metric", "value")] = (row.get("mean"), row.get("std"))
    return list(lines.values())


def tables_named(header: str) -> list[tuple[str, str]]:
    """The (paper, table) that a recipe's header names in its first line, as `Table 2 of Atapour et al. 2024`.

    Only what the package has. The first line says what the recipe is; later ones, what options make of it.
    """
    named = re.search(r"\bTables? (\w+)(?: and (?:Table )?(\w+))?", header.partition("\n")[0])
    if named is None:
        return []
    for path in sorted(FOLDER.glob("*.yaml")):
        content = load_yaml(path.read_text("utf8"))
        if "{authors} {year}".format(**content["paper"]) in header:
            return [(path.stem, table["id"]) for table in content["tables"] if table["id"] in named.groups()]
    return []
