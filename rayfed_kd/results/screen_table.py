"""Tables of texts, on the screen, and as text for `print` and for a notebook."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.console import Console
from rich.table import Table
from rich.text import Text

COLUMNS = 120  # a table that needs fewer takes fewer
_NUMBER = re.compile(r"[-+(]*[\d.]*\d|(inf|nan)\b")


@dataclass(frozen=True)
class TextTable:
    """Text in rows and columns, which each writer lays out in its own way.

    Attributes:
        title: the table's heading, without a colon or a stop.
        header: the columns' titles.
        rows: each as long as the header.
        left: the number of columns that name the row and stand on the left. Of the others those stand on the
            left that hold words, and those on the right that hold numbers.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1

    @cached_property  # a page asks for every cell
    def words(self) -> list[bool]:
        """By column: whether it stands on the left."""
        return [place < self.left or self._has_words(place) for place in range(len(self.header))]

    def _has_words(self, column: int) -> bool:
        """Whether a column has cells, and none of them begins with a number."""
        filled = [row[column] for row in self.rows if row[column]]
        return bool(filled) and not any(_NUMBER.match(cell) for cell in filled)


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
