"""The papers' result tables, as data: one YAML file per paper, flat records.

Accuracies are percent as printed, FM is its real value, and `mean` is null where a paper only bounds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rayfed_kd.errors import RecipeError, nearest
from rayfed_kd.recipe.yaml_documents import load_yaml

FOLDER = Path(__file__).parent
_VALUES = ("metric", "mean", "std")


@cache
def _content(path: Path) -> dict[str, Any]:
    """A paper's file: long enough that a study of many rows would wait for it. Nobody changes the records."""
    content: dict[str, Any] = load_yaml(path.read_text("utf8"))
    return content


def published_rows(paper: str, table: str, where: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The records of a paper's table that have some keys and values.

    Args:
        paper: the name of its YAML file, as fedkf.
        table: the table's number as printed, as VI.
        where: key -> value that the records must have; empty: all records.

    Returns: records in the paper's order, at least one.

    Raises:
        RecipeError: there is no such paper, table, key or record.
    """
    papers = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    if paper not in papers:
        raise RecipeError(
            f"published.paper: {paper!r} is unknown; expected one of {', '.join(papers)}.",
            hint=nearest(paper, papers),
        )
    content = _content(FOLDER / f"{paper}.yaml")
    tables = {entry["id"]: entry for entry in content["tables"]}
    if table not in tables:
        raise RecipeError(
            f"published.table: {table!r} is no table of {paper}; expected one of {', '.join(tables)}"
        )
    rows: list[dict[str, Any]] = tables[table]["rows"]
    keys = {key for row in rows for key in row}
    for key in where:
        if key not in keys:
            valid = ", ".join(sorted(keys))
            raise RecipeError(f"published.where: no {key!r} in {paper}'s table {table}; there are {valid}")
    chosen = [row for row in rows if all(row.get(key) == value for key, value in where.items())]
    if not chosen:
        raise RecipeError(f"published.where: no row of {paper}'s table {table} has {dict(where)}")
    return chosen


def published_lines(paper: str, table: str, where: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A paper's table with one line per system.

    Args:
        paper, table, where: as `published_rows` takes them.

    Returns: {"label": str, "values": metric -> (mean or None, std or None)} each. The label is the system's
        name with the keys that tell it from others, but for those of `where`.

    Raises:
        RecipeError: as `published_rows`.
    """
    lines: dict[str, dict[str, Any]] = {}
    for row in published_rows(paper, table, where):
        keys = [f"{k} {v}" for k, v in row.items() if k not in (*_VALUES, "method", "more_than", *where)]
        label = ", ".join([str(row.get("method", "")), *keys]).strip(", ")
        line = lines.setdefault(label, {"label": label, "values": {}})
        line["values"][row.get("metric", "value")] = (row.get("mean"), row.get("std"))
    return list(lines.values())
