"""Estimates of the time that work still takes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

# Rounds that an estimate is the mean of: enough to even out evaluations every few rounds.
WINDOW = 50


class TimeLeft:
    """Estimates when a run ends, from the seconds of its last rounds.

    Args:
        clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: deque[float] = deque(maxlen=WINDOW)
        self._left, self._noted, self._first = 0, clock(), True

    def note(self, event: Mapping[str, Any]) -> None:
        """Note a finished round's event."""
        # The first round of a process is longer, as modules are built: it counts until there is another.
        if self._first and self._seconds:
            self._seconds.clear()
            self._first = False
        self._seconds.append(event["round_s"])
        self._left, self._noted = event["rounds"] - event["round"], self._clock()

    def seconds(self) -> float | None:
        """Estimated seconds until the end; None before the first round has ended."""
        if not self._seconds:
            return None
        mean = sum(self._seconds) / len(self._seconds)
        # The current round's seconds so far count as one round at most: it may be a longer one.
        return max(0.0, mean * self._left - min(self._clock() - self._noted, mean))

    @property
    def since_last(self) -> float:
        """Seconds since the last round ended, or since the start."""
        return self._clock() - self._noted


def clock_text(seconds: float) -> str:
    """Seconds as hours, minutes and seconds: 3725 is `1:02:05`."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def left_text(seconds: float | None) -> str:
    """An estimate, as `0:01:20 left`; empty for None."""
    return "" if seconds is None else f"{clock_text(seconds)} left"
