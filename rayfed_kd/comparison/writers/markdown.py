"""A comparison as Markdown: comparison.md, which the report reads again."""

from __future__ import annotations

from collections.abc import Sequence

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.table_text import (
    CLAIM_HEADER,
    caption,
    cells,
    claim_cells,
    header,
    published_lines_of,
    remarks,
)

ESCAPED_BAR = r"\|"  # a plain bar would end the cell, and shift the numbers below the wrong heading


def render_markdown(comparison: Comparison) -> str:
    """The caption, the table, the remarks beneath it, the claims, and a table per paper.

    Args:
        comparison: what is shown.

    Returns: Markdown without a final line break.
    """
    columns = header(comparison)
    lines = [caption(comparison), "", _table_line(columns), _table_line(["---"] * len(columns))]
    lines += [_table_line(line) for line in cells(comparison)]
    for remark in remarks(comparison):
        lines += ["", remark]
    if comparison.study.claims:
        lines += ["", "Claims:", "", _table_line(CLAIM_HEADER), _table_line(["---"] * len(CLAIM_HEADER))]
        lines += [_table_line(line) for line in claim_cells(comparison)]
    for published in published_lines_of(comparison):
        lines += ["", f"{published.heading}:", "", "| system | as printed |", "| --- | --- |"]
        lines += [_table_line(line) for line in published.lines]
    return "\n".join(lines)


def read_table_line(line: str) -> list[str]:
    """The cells of a line of a table that `render_markdown` wrote."""
    parts = line.strip().removeprefix("|").removesuffix("|").split(" | ")
    return [part.strip().replace(ESCAPED_BAR, "|") for part in parts]


def _table_line(parts: Sequence[str]) -> str:
    return f"| {' | '.join(part.replace('|', ESCAPED_BAR) for part in parts)} |"
