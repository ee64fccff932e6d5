"""A comparison on the screen."""

from __future__ import annotations

from rich.console import Console

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.table_text import caption, remarks
from rayfed_kd.comparison.writers.all_tables import main_table, tables_beneath
from rayfed_kd.results.screen_table import screen_table


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the table, its caption and remarks, the claims, the costs, and the papers' values.

    Args:
        comparison: what is shown.
        console: a terminal; for files and pipes use `render_markdown`, which folds no line.
    """
    main = main_table(comparison)
    console.print(screen_table(main.title, main.header, main.rows))
    for line in (caption(comparison), *remarks(comparison)):
        console.print(line, markup=False, highlight=False)  # a label may hold brackets
    for table in tables_beneath(comparison):
        console.print(screen_table(table.title, table.header, table.rows, table.left))
