"""Sections about papers: the tables that `compare` wrote, and what the recipes' papers print."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayfed_kd.comparison.paper_rows import PrintedValue, printed_text
from rayfed_kd.comparison.published import published_lines, published_rows, tables_named
from rayfed_kd.comparison.writers.markdown import read_table_line, unescaped
from rayfed_kd.reporting.reading import Run
from rayfed_kd.reporting.sections import Section, Table


def comparison_section(folder: str, text: str) -> Section:
    """What `compare` wrote: our rows, and the paper's as printed.

    Args:
        folder: the comparison's folder.
        text: comparison.md; "" if it was not written yet.
    """
    heading = f"Comparison {Path(folder).resolve().name}"
    if not text:
        return Section(heading, ["The comparison was not ended: these are the runs that it has so far."])
    blocks = re.split(r"\n\s*\n", text.strip())
    tables, notes, title = [], [], ""
    for block in blocks:
        lines = [read_table_line(line) for line in block.splitlines()]
        if not block.startswith("|"):
            title = unescaped(block.strip().removesuffix(":"))
            notes.append(title)
        else:
            tables.append(Table(title, lines[0], lines[2:]))
    return Section(heading, [note for note in notes if note not in {t.title for t in tables}], tables)


def study_title(text: str) -> str:
    """The study's title in what `compare` wrote; "" if there is none.

    Args:
        text: comparison.md.
    """
    title = unescaped(text.partition("\n")[0].rpartition("; last round, ")[0])
    return "" if title == "Comparison" else title


def published_section(runs: Sequence[Run]) -> Section | None:
    """The papers' numbers; None if no recipe's header names a table.

    Args:
        runs: what the report is about.
    """
    tables = {}
    for run in runs:
        for paper, table in tables_named(run.recipe.header):
            where = _where(run, published_rows(paper, table, {}))
            restriction = ", ".join(f"{key} {value}" for key, value in where.items())
            title = f"{paper} table {table}{f' ({restriction})' if restriction else ''}, as printed"
            lines = published_lines(paper, table, where)
            metrics = list(dict.fromkeys(metric for line in lines for metric in line["values"]))
            rows = [
                (line["label"], *(_cell_text(line["values"].get(metric)) for metric in metrics))
                for line in lines
            ]
            tables[title] = Table(title, ("system", *metrics), rows)
    note = "Named by the recipe's header; percent, FM as its real value. Overrides may change the setting."
    return Section("Published numbers", [note], list(tables.values())) if tables else None


def _where(run: Run, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The keys of the printed table that the run's data and split have, with their values."""
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


def _cell_text(value: PrintedValue | None) -> str:
    return "" if value is None else printed_text(value)
