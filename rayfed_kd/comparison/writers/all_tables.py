"""A comparison's tables of texts, in the order in which every writer shows them."""

from __future__ import annotations

from rich.console import Console

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.table_text import caption, cells, header, remarks
from rayfed_kd.comparison.writers.claim_table import CLAIM_HEADER, claim_cells
from rayfed_kd.comparison.writers.cost_table import cost_cells, cost_header, cost_title
from rayfed_kd.comparison.writers.published_table import published_tables
from rayfed_kd.results.screen_table import TextTable, screen_table


def main_table(comparison: Comparison) -> TextTable:
    """Every row's metrics. The caption stands above it, the remarks beneath."""
    return TextTable(comparison.study.title, header(comparison), cells(comparison))


def tables_beneath(comparison: Comparison) -> list[TextTable]:
    """The claims, if the study has any, the costs, and a table per paper."""
    claims = TextTable("Claims", CLAIM_HEADER, claim_cells(comparison), left=len(CLAIM_HEADER))
    costs = TextTable(cost_title(comparison), cost_header(comparison), cost_cells(comparison))
    return [*([claims] if claims.rows else []), costs, *published_tables(comparison)]


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
