"""What is shown while work goes on: a live line below a terminal's lines, elsewhere a line a minute."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import IO, Any, NamedTuple, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

BAR = 20  # columns


class Shown(NamedTuple):
    """What a live line shows now.

    Attributes:
        head: what always stands first, as `round 3/10`.
        done: the finished share, in [0, 1]; None: not known.
        left: the time left, or since when.
        facts: as many of these as there is room for, in order.
    """

    head: str
    done: float | None
    left: str
    facts: Sequence[str]


class Screen:
    """Prints lines. A terminal gets a live line below them, a file or pipe a line after each quiet minute.

    Those who inherit say what is shown. As a
    context it stops at the block's end.

    Args:
        stream: where to write; None: standard output.

    Attributes:
        quiet_s: seconds of a quiet minute.
    """

    quiet_s = 60.0

    def __init__(self, stream: IO[str] | None = None) -> None:
        # No markup: a method's names and a folder's may hold brackets.
        self.console = Console(file=stream, highlight=False, soft_wrap=True, markup=False)
        self._line: Live | None = None
        self._over = threading.Event()
        self._printed = time.monotonic()
        self._stopping: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def shown(self) -> Shown:
        """What the live line shows now; called several times a second, from a thread."""
        raise NotImplementedError

    def minute_text(self) -> str:
        """The same in a line, for a quiet minute."""
        line = self.shown()
        left = f"about {line.left}" if line.left and line.done is not None else line.left
        return "; ".join(filter(None, (line.head, left, ", ".join(line.facts))))

    @property
    def live(self) -> bool:
        """Whether there is a live line."""
        return self._line is not None

    def begin_showing(self) -> None:
        """Begin the live line, or to count minutes."""
        if self.console.is_interactive:  # a dumb terminal has no live display
            # Transient: when work ends, the lines above say all.
            self._line = Live(console=self.console, get_renderable=self._rendered, transient=True)
            self._line.start()
        else:
            threading.Thread(target=self._count_minutes, name="minutes", daemon=True).start()

    def message(self, text: str) -> None:
        """Print a line; the live line stays below it."""
        self.console.print(text)
        self._printed = time.monotonic()

    def stopping(self) -> None:
        """Show from now on that the work is stopped, and for how long. A signal's handler may call this."""
        self._stopping = time.monotonic()

    def stop(self) -> None:
        """Remove the live line; the terminal is as before. May be called again."""
        self._over.set()
        if self._line is not None:
            self._line.stop()
            self._line = None

    def _rendered(self) -> RenderableType:
        """The live line as it is now."""
        since = self._stopping
        now = Shown("stopping", None, clock_text(time.monotonic() - since), ()) if since else self.shown()
        facts = fitting(now.facts, self.console.width - len(now.head) - BAR - len(now.left) - 3)
        # Without a total the bar moves to and fro.
        bar = ProgressBar(total=None if now.done is None else 1.0, completed=now.done or 0.0, width=BAR)
        line = Table.grid(padding=(0, 1))
        line.add_row(Text(now.head, style="bold"), bar, Text(now.left, style="cyan"), Text(facts))
        return line

    def _count_minutes(self) -> None:
        while not self._over.wait(max(0.0, self._printed + self.quiet_s - time.monotonic())):
            if time.monotonic() - self._printed < self.quiet_s:
                continue  # a line was printed meanwhile
            self._printed, since = time.monotonic(), self._stopping
            stopping = "" if since is None else f"stopping, for {clock_text(self._printed - since)} so far"
            self.message(stopping or self.minute_text())


def fitting(facts: Sequence[str], width: int) -> str:
    """The first facts that fit into a width, two spaces between them.

    Args:
        facts: in order; a fact is shown whole or not at all.
        width: columns.
    """
    lines = accumulate(facts, "{}  {}".format)
    return max((line for line in lines if len(line) <= width), key=len, default="")


def seconds_left(event: Mapping[str, Any], since_s: float = 0.0) -> float:
    """Estimated seconds until a run ends, by the mean of its rounds so far.

    Args:
        event: the last round's.
        since_s: seconds since then. They count as one round at most: this one may be longer than others.
    """
    mean: float = event["wall_s"] / event["round"]
    rounds: int = event["rounds"] - event["round"]
    return max(0.0, mean * rounds - min(since_s, mean))


def clock_text(seconds: float) -> str:
    """Seconds as hours, minutes and seconds: 3725 is `1:02:05`."""
    total = round(seconds)
    return f"{total // 3600}:{total // 60 % 60:02d}:{total % 60:02d}"


def left_text(seconds: float | None) -> str:
    """An estimate, as `0:01:20 left`; empty for None."""
    return "" if seconds is None else f"{clock_text(seconds)} left"
