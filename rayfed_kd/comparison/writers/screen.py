"""A comparison on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.table_text import caption, cells, header, remarks
from rayfed_kd.comparison.writers.claim_table import CLAIM_HEADER, claim_cells
from rayfed_kd.comparison.writers.cost_table import cost_cells, cost_header, cost_title
from rayfed_kd.comparison.writers.published_table import published_lines_of


def screen_table(comparison: Comparison) -> Table:
    """The table for a terminal; long cells are folded."""
    return _numbers_table(comparison.study.title, header(comparison), cells(comparison))


def _numbers_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=Text(title) if title else None)
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # a label may hold brackets
    return table


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the table, its caption and remarks, the claims, the costs, and the papers' values.

    Args:
        comparison: what is shown.
        console: a terminal; for files and pipes use `render_markdown`, which folds no line.
    """
    console.print(screen_table(comparison))
    for line in (caption(comparison), *remarks(comparison)):
        console.print(line, markup=False, highlight=False)  # a label may hold brackets
    if comparison.study.claims:
        claims = Table(*CLAIM_HEADER)
        for claim in claim_cells(comparison):
            claims.add_row(*map(Text, claim))
        console.print(claims)
    costs = cost_header(comparison), cost_cells(comparison)
    console.print(_numbers_table(cost_title(comparison), *costs))
    for published in published_lines_of(comparison):
        console.print(published.heading, markup=False)
        for label, values in published.lines:
            console.print(f"  {label}: {values}", markup=False, highlight=False)
