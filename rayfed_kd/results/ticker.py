"""Calls a function when nothing was told for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

MINUTE_S = 60.0


class Ticker:
    """Calls a function after each minute in which `put_off` was not called. It has a thread.

    Args:
        tick: called in the thread.
        every_s: seconds.
    """

    def __init__(self, tick: Callable[[], None], every_s: float = MINUTE_S) -> None:
        self._tick, self._every_s = tick, every_s
        self._over, self._last = threading.Event(), time.monotonic()
        self._thread = threading.Thread(target=self._live, name="ticker", daemon=True)
        self._thread.start()

    def put_off(self) -> None:
        """Begin a minute anew."""
        self._last = time.monotonic()

    def stop(self) -> None:
        """End the calls."""
        self._over.set()

    def _live(self) -> None:
        while not self._over.wait(max(0.0, self._last + self._every_s - time.monotonic())):
            if time.monotonic() - self._last >= self._every_s:
                self.put_off()
                self._tick()
