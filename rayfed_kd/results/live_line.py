"""One line of a terminal that is drawn again while work goes on; lines above it stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

BAR = 20  # columns
A_SECOND = 4  # times that the line is drawn again


class Shown(NamedTuple):
    """What a live line shows now.

    Attributes:
        head: what always stands first, as `round 3/10`.
        done: the finished share, in [0, 1]; None: not known, and no bar is drawn.
        left: the time left, or nothing.
        facts: as many of these as there is room for, in order.
    """

    head: str
    done: float | None
    left: str
    facts: Sequence[str]


class LiveLine:
    """A live line below the lines that are printed on the same console.

    Args:
        console: a terminal's.
        shown: gives what the line shows; called several times a second, from a thread.
    """

    def __init__(self, console: Console, shown: Callable[[], Shown]) -> None:
        self._console, self._shown = console, shown
        # Transient: when work ends, the lines above say all.
        self._live = Live(
            console=console, get_renderable=self._line, refresh_per_second=A_SECOND, transient=True
        )
        self._live.start()

    def stop(self) -> None:
        """Remove the line; the terminal is as before."""
        self._live.stop()

    def _line(self) -> Table:
        shown = self._shown()
        parts: list[Text | ProgressBar] = [Text(shown.head, style="bold")]
        width = len(shown.head)
        if shown.done is not None:
            parts.append(ProgressBar(total=1.0, completed=shown.done, width=BAR))
            width += 1 + BAR
        if shown.left:
            parts.append(Text(shown.left, style="cyan"))
            width += 1 + len(shown.left)
        parts.append(Text(fitting(shown.facts, self._console.width - width - 2)))
        line = Table.grid(padding=(0, 1, 0, 0))
        for _ in parts:
            line.add_column(no_wrap=True, overflow="crop")
        line.add_row(*parts)
        return line


def fitting(facts: Sequence[str], width: int) -> str:
    """The first facts that fit into a width, two spaces between them.

    Args:
        facts: in order; a fact is shown whole or not at all.
        width: columns.
    """
    text = ""
    for fact in facts:
        longer = f"{text}  {fact}" if text else fact
        if len(longer) > width:
            break
        text = longer
    return text
