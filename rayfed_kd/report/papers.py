"""Our rows beside the papers'."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayfed_kd.comparison.published import published_lines, published_rows, tables_named
from rayfed_kd.comparison.table import BAR
from rayfed_kd.report.parts import Section, Table
from rayfed_kd.report.reading import Run


def comparison_section(folder: str, text: str) -> Section:
    """What `compare` wrote: our rows, and the paper's as printed.

    Args:
        text: comparison.md; "" if it is not there.
    """
    heading = f"Comparison {Path(folder).resolve().name}"
    if not text:
        return Section(heading, ["The comparison was not ended: these are the runs that there are."])
    blocks = re.split(r"\n\s*\n", text.strip())
    tables, notes, title = [], [], ""
    for block in blocks:
        lines = [_cells(line) for line in block.splitlines()]
        if not block.startswith("|"):
            title = block.strip().removesuffix(":")
            notes.append(title)
        else:
            tables.append(Table(title, lines[0], lines[2:]))
    return Section(heading, [note for note in notes if note not in {t.title for t in tables}], tables)


def _cells(line: str) -> list[str]:
    """Of a line of a Markdown table."""
    cells = line.strip().removeprefix("|").removesuffix("|").split(" | ")
    return [cell.strip().replace(BAR, "|") for cell in cells]


def published_section(runs: Sequence[Run]) -> Section | None:
    """The paper's numbers, where a recipe's header names its table."""
    tables = {}
    for run in runs:
        for paper, table in tables_named(run.recipe.header):
            where = _where(run, published_rows(paper, table, {}))
            told = ", ".join(f"{key} {value}" for key, value in where.items())
            title = f"{paper} table {table}{f' ({told})' if told else ''}, as printed"
            lines = published_lines(paper, table, where)
            metrics = list(dict.fromkeys(metric for line in lines for metric in line["values"]))
            rows = [
                (line["label"], *(_printed(line["values"].get(metric)) for metric in metrics))
                for line in lines
            ]
            tables[title] = Table(title, ("system", *metrics), rows)
    note = "Named by the recipe's header; percent, FM as its real value. Overrides may change the setting."
    return Section("Published numbers", [note], list(tables.values())) if tables else None


def _where(run: Run, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What of the run's data and split the printed table has."""
    data = re.sub(r"[^a-z0-9]", "", run.recipe.data.name.lower().removesuffix("_letters"))
    alpha = run.recipe.partition.options.get("alpha")
    where: dict[str, Any] = {}
    for row in rows:
        if re.sub(r"[^a-z0-9]", "", str(row.get("dataset", "")).lower()) == data:
            where["dataset"] = row["dataset"]
    for row in rows:
        fits = all(row.get(key) == value for key, value in where.items())
        for key in ("alpha", "beta"):
            if fits and alpha is not None and row.get(key) == alpha:
                return {**where, key: row[key]}
    return where


def _printed(value: tuple[float | None, float | None] | None) -> str:
    if value is None:
        return ""
    mean, deviation = value
    if mean is None:
        return "not given"
    return f"{mean:g}" + (f" ± {deviation:g}" if deviation is not None else "")
