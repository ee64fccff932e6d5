"""What the screen shows of a result, as text: for `print`, and for a notebook."""

from __future__ import annotations

import html
import io

from rich.console import Console
from rich.table import Table

COLUMNS = 120  # a table that needs fewer takes fewer


def table_text(table: Table) -> str:
    """A table of the screen as text, without colours."""
    stream = io.StringIO()
    Console(file=stream, width=COLUMNS, color_system=None).print(table)
    return stream.getvalue().rstrip()


def preformatted(text: str) -> str:
    """A text as HTML that shows it as it is."""
    return f"<pre>{html.escape(text)}</pre>"
