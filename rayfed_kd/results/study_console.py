"""What a comparison and a search show while their runs go on: how far each is, and the time left for all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import IO

from rayfed_kd.results.screen import Screen, Shown
from rayfed_kd.results.time_left import clock_text, left_text


class Work:
    """How far the runs of a comparison or a search are. Its methods may be called from any thread.

    Args:
        clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._rounds: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._begun: dict[str, int] = {}
        self._over: set[str] = set()
        self._first_start: float | None = None
        self._first_round: float | None = None
        self.phase = ""

    def expect(self, name: str, rounds: int) -> None:
        """Note a run that is to be done, with its number of rounds."""
        with self._lock:
            self._rounds[name] = rounds

    def start(self, name: str) -> None:
        """Note that a run is under way, or goes on."""
        with self._lock:
            if self._first_start is None:
                self._first_start, self.phase = self._clock(), ""
            self._done.setdefault(name, 0)

    def round(self, name: str, index: int) -> None:
        """Note that a run has ended a round."""
        with self._lock:
            if self._first_round is None:
                self._first_round, self.phase = self._clock(), ""
            # A run's first round here says where it went on; the time until then is no measure.
            self._begun.setdefault(name, index)
            self._done[name] = index

    def end(self, name: str) -> None:
        """Note that a run is over, with all its rounds or fewer."""
        with self._lock:
            self._over.add(name)

    def seconds_left(self) -> float | None:
        """Estimated seconds until all runs are over, as fast as rounds were so far; None: not known yet.

        Each run's rounds after its first are measured; runs of one round as a whole.
        """
        with self._lock:
            since = self._first_round
            here = sum(self._done[name] - first for name, first in self._begun.items())
            if not here:
                since = self._first_start
                here = sum(self._rounds[name] for name in self._over & self._begun.keys())
            if since is None or not here:
                return None
            names = self._rounds.keys() - self._over
            missing = sum(self._rounds[name] - self._done.get(name, 0) for name in names)
            return missing * (self._clock() - since) / here

    def share(self) -> float:
        """The share of all rounds that is done; those of a run that is over count as done."""
        with self._lock:
            done = sum(r if n in self._over else self._done.get(n, 0) for n, r in self._rounds.items())
            return done / max(1, sum(self._rounds.values()))

    def counts(self) -> tuple[int, int]:
        """How many runs are over, and how many there are."""
        with self._lock:
            return len(self._over), len(self._rounds)

    def running(self) -> list[str]:
        """The runs under way with their rounds, as `A, seed 1 12/50`."""
        with self._lock:
            return [
                f"{name} {done}/{self._rounds[name]}"
                for name, done in self._done.items()
                if name not in self._over
            ]


class StudyConsole(Screen):
    """Shows a comparison or a search. A terminal gets a live line, a file or pipe a line a minute.

    Args:
        noun: what the runs are called: runs or trials.
        stream: where to write; None: standard output.
    """

    def __init__(self, noun: str, stream: IO[str] | None = None) -> None:
        super().__init__(stream)
        self.work, self._noun, self._began = Work(), noun, time.monotonic()
        self.begin_showing()

    def shown(self) -> Shown:
        """How many runs are over, the time left for all, and those under way."""
        over, total = self.work.counts()
        left = self.work.seconds_left()
        if not total or (left is None and not self.work.running()):
            since = clock_text(time.monotonic() - self._began)
            return Shown(self.work.phase or "preparing", None, since, ())
        return Shown(f"{over}/{total} {self._noun}", self.work.share(), left_text(left), self.work.running())
