"""A comparison on the screen."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

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


def screen_table(comparison: Comparison) -> Table:
    """The table for a terminal; long cells are folded."""
    title = comparison.study.title
    table = Table(title=Text(title) if title else None)
    for place, column in enumerate(header(comparison)):
        table.add_column(column, justify="left" if place == 0 else "right", overflow="fold")
    for line in cells(comparison):
        table.add_row(*line)
    return table


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the table, its caption and remarks, the claims, and the papers' values.

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
    for published in published_lines_of(comparison):
        console.print(published.heading, markup=False)
        for label, values in published.lines:
            console.print(f"  {label}: {values}", markup=False, highlight=False)
