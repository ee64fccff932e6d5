"""Tables of the screen; and the same as text, for `print` and for a notebook."""

from __future__ import annotations

import html
import io
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

COLUMNS = 120  # a table that needs fewer takes fewer


def screen_table(title: str, header: Iterable[str], rows: Iterable[Sequence[str]], left: int = 1) -> Table:
    """A table for a terminal, of texts that are shown as they are; long cells are folded.

    Args:
        title: stands above it; "" for none.
        header: the columns' titles.
        rows: each as long as the header.
        left: how many columns stand on the left, from the first on; the others have numbers.
    """
    # As Text: a label may hold brackets, which rich would read as its markup.
    table = Table(title=Text(title) if title else None)
    for place, column in enumerate(header):
        table.add_column(Text(column), justify="left" if place < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def table_text(table: Table) -> str:
    """A table of the screen as text, without colours."""
    stream = io.StringIO()
    Console(file=stream, width=COLUMNS, color_system=None).print(table)
    return stream.getvalue().rstrip()


def preformatted(text: str) -> str:
    """A text as HTML that shows it as it is."""
    return f"<pre>{html.escape(text)}</pre>"
