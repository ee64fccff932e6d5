"""The section of what `compare` wrote: its table, the claims, the costs and the papers' numbers."""

from __future__ import annotations

import re
from pathlib import Path

from rayfed_kd.comparison.writers.markdown import read_table_line, unescaped
from rayfed_kd.reporting.sections import Section
from rayfed_kd.results.screen_table import TextTable


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
            tables.append(TextTable(title, lines[0], lines[2:]))
    return Section(heading, [note for note in notes if note not in {t.title for t in tables}], tables)


def study_title(text: str) -> str:
    """The study's title in what `compare` wrote; "" if there is none.

    Args:
        text: comparison.md.
    """
    title = unescaped(text.partition("\n")[0].rpartition("; last round, ")[0])
    return "" if title == "Comparison" else title
