"""What is shown while work goes on: a live line below a terminal's lines, elsewhere a line a minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rayfed_kd.results.ticker import Ticker
from rayfed_kd.results.time_left import clock_text

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


class Watch:
    """Shows how far work is. A terminal gets a live line, a file or pipe a line after each quiet minute.

    Args:
        console: where to write.
        shown: gives what the live line shows; called several times a second, from a thread.
        told: gives the line of a quiet minute; "" for none.
    """

    def __init__(self, console: Console, shown: Callable[[], Shown], told: Callable[[], str]) -> None:
        self._console, self._shown, self._told = console, shown, told
        self._line: LiveLine | None = None
        self._ticker: Ticker | None = None
        self._stopping, self._since = "", 0.0

    @property
    def live(self) -> bool:
        """Whether there is a live line."""
        return self._line is not None

    def start(self) -> None:
        """Begin to show."""
        if self._console.is_interactive:  # a dumb terminal has no live display
            self._line = LiveLine(self._console, self._now)
        else:
            self._ticker = Ticker(self._minute_passed)

    def message(self, text: str) -> None:
        """Print a line; the live line stays below it."""
        self._console.print(text)
        if self._ticker is not None:
            self._ticker.put_off()

    def stopping(self, text: str) -> None:
        """Show from now on that the work is stopped. A signal's handler may call this.

        Args:
            text: as `stopping`; how long it takes stands behind it.
        """
        self._stopping, self._since = text, time.monotonic()

    def stop(self) -> None:
        """Remove the live line; the terminal is as before. May be called again."""
        if self._line is not None:
            self._line.stop()
            self._line = None
        if self._ticker is not None:
            self._ticker.stop()
            self._ticker = None

    def _now(self) -> Shown:
        if not self._stopping:
            return self._shown()
        return Shown(self._stopping, None, clock_text(time.monotonic() - self._since), ())

    def _minute_passed(self) -> None:
        since = clock_text(time.monotonic() - self._since)
        text = f"{self._stopping}, for {since} so far" if self._stopping else self._told()
        if text:
            self.message(text)


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
