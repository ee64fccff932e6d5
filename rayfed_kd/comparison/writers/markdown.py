"""A comparison as Markdown: comparison.md, which the report reads again."""

from __future__ import annotations

from collections.abc import Sequence

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.table_text import caption, cells, header, remarks
from rayfed_kd.comparison.writers.claim_table import CLAIM_HEADER, claim_cells
from rayfed_kd.comparison.writers.cost_table import cost_cells, cost_header, cost_title
from rayfed_kd.comparison.writers.published_table import published_lines_of

ESCAPED_BAR = r"\|"  # a plain bar would end the cell, and shift the numbers below the wrong heading


def render_markdown(comparison: Comparison) -> str:
    """The caption, the table, the remarks beneath it, the claims, the costs, and a table per paper.

    Args:
        comparison: what is shown.

    Returns: Markdown without a final line break.
    """
    lines = [caption(comparison), "", *_table(header(comparison), cells(comparison))]
    for remark in remarks(comparison):
        lines += ["", remark]
    if comparison.study.claims:
        lines += ["", "Claims:", "", *_table(CLAIM_HEADER, claim_cells(comparison))]
    costs = _table(cost_header(comparison), cost_cells(comparison))
    lines += ["", f"{cost_title(comparison)}:", "", *costs]
    for published in published_lines_of(comparison):
        lines += ["", f"{published.heading}:", "", *_table(("system", "as printed"), published.lines)]
    return "\n".join(lines)


def read_table_line(line: str) -> list[str]:
    """The cells of a line of a table that `render_markdown` wrote."""
    parts = line.strip().removeprefix("|").removesuffix("|").split(" | ")
    return [part.strip().replace(ESCAPED_BAR, "|") for part in parts]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_table_line(columns), _table_line(["---"] * len(columns)), *map(_table_line, rows)]


def _table_line(parts: Sequence[str]) -> str:
    return f"| {' | '.join(part.replace('|', ESCAPED_BAR) for part in parts)} |"
