"""What a run shows while it goes and when it ends, and how far the runs of a comparison or a search are.

A terminal gets a line a round above a live line, a file or pipe plain lines.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from rayfed_kd.errors import counted
from rayfed_kd.results.schemas import EPSILONS
from rayfed_kd.results.scores import is_score
from rayfed_kd.results.screen import Screen, Shown, clock_text, fitting, left_text, seconds_left
from rayfed_kd.results.summary_table import left_out, summary_notes, summary_tables
from rayfed_kd.results.telling import Teller


class RunConsole(Screen):
    """Shows one run, from its title to its table of results.

    Args:
        stream: where to write; None: standard output.
    """

    def __init__(self, stream: IO[str] | None = None) -> None:
        super().__init__(stream)
        self._noted = time.monotonic()  # when the last round ended, or the run began
        self._phase = ""
        self._last: Mapping[str, Any] = {}
        self._last_metrics: Mapping[str, Any] = {}
        self._began = False

    @property
    def teller(self) -> Teller:
        """Listens to what a run tells."""
        return Teller(self.message, self.phase, self.begin)

    def start(self, title: str) -> None:
        """Print the command that runs. A terminal gets a live line, a file or pipe a line a minute."""
        self.console.print(title)
        self.begin_showing()

    def begin(self, facts: Mapping[str, str]) -> None:
        """Print what runs.

        Args:
            facts: name -> text, in order.
        """
        self._began = True
        width = max(map(len, facts), default=0)
        for name, text in facts.items():
            self.message(f"{name.ljust(width)}  {text}")

    def phase(self, text: str) -> None:
        """Show what the run waits for before its first round.

        Args:
            text: as `decoding mnist 40 %`; "" when the first round begins.
        """
        # A file's first lines say what runs; then it gets a line for each phase, but not for each percent.
        if text and self._began and not self.live and text.split()[:2] != self._phase.split()[:2]:
            self.message(text)
        self._phase = text

    def round(self, event: Mapping[str, Any]) -> None:
        """Print a line about a finished round.

        Args:
            event: as `RunRecorder` makes it.
        """
        self._phase = ""
        self._noted = time.monotonic()
        self._last, self._last_metrics = event, event.get("metrics") or self._last_metrics
        if not self.live:
            self.message(round_line(event, seconds_left(event)))
        else:
            head = _round_head(event, None)
            self.message(f"{head}  {fitting([*_event_texts(event)], self.console.width - len(head) - 2)}")

    def shown(self) -> Shown:
        """The round, what it brought, and the time left."""
        event, since_s = self._last, time.monotonic() - self._noted
        if self._phase or not event:
            return Shown(self._phase or "round 1", None, clock_text(since_s), ())
        metrics = [*_event_texts({**event, "metrics": self._last_metrics})]
        done = event["round"] / event["rounds"]
        head = f"round {event['round']}/{event['rounds']}"
        return Shown(head, done, left_text(seconds_left(event, since_s)), metrics)

    def finish(
        self, summary: Mapping[str, Any], folder: Path, seconds: float, *, resumed: bool = False
    ) -> None:
        """Print the table of models, the run's folder, and how to look at it.

        Args:
            summary: as `summarise` makes it.
            folder: the run's folder.
            seconds: real seconds of this process.
            resumed: whether the run began in an earlier process; rounds, simulated time and bytes are of
                both then.
        """
        self.stop()
        for table in summary_tables(summary):
            self.console.print(table)
        for note in summary_notes(summary):
            self.console.print(note)
        sent = summary["bytes"]
        in_rounds = f"{summary['wall_s']:.1f} s"
        if not resumed:
            spent = f"{seconds:.1f} s in all, {in_rounds} of it in rounds; "
        else:  # a finished run does no round more
            since = f"{seconds:.1f} s since it was resumed; " if self._last else ""
            spent = f"{since}the whole run: {in_rounds} in rounds; "
        self.console.print(
            spent
            + (f"{summary['sim_s']:,.1f} simulated s; " if summary.get("sim_s") is not None else "")
            + f"up {format_bytes(sent['up'])}, down {format_bytes(sent['down'])}"
        )
        self.console.print(f"run folder   {folder}")
        if (folder / "tensorboard").is_dir():
            self.console.print(f"look at it   tensorboard --logdir {shlex.quote(str(folder))}")
        self.console.print(f"report       rayfed-kd report {shlex.quote(str(folder))}")


def round_line(event: Mapping[str, Any], left_s: float | None = None) -> str:
    """A finished round in a line, as `round 3/10  2.1 s  0:00:15 left  oca amp 0.412  up 1.5 KiB ...`.

    Args:
        event: as `RunRecorder` makes it.
        left_s: estimated seconds until the run ends; None: not shown, as after the last round.
    """
    return "  ".join((_round_head(event, left_s), *_event_texts(event)))


def _round_head(event: Mapping[str, Any], left_s: float | None) -> str:
    left = left_text(left_s) if event["round"] < event["rounds"] else ""
    return "  ".join(
        filter(None, (f"round {event['round']}/{event['rounds']}", f"{event['round_s']:.1f} s", left))
    )


def _event_texts(event: Mapping[str, Any]) -> Iterator[str]:
    if event.get("bad_replies"):
        yield left_out(event["bad_replies"])
    for model, metrics in (event.get("metrics") or {}).items():
        values = [
            f"{name} {metrics[name]:.3f}"
            for name in ("amp", "wlp", "server_accuracy")
            if metrics.get(name) is not None
        ]
        if values:
            yield f"{model} {' '.join(values)}"
        if metrics.get("not_finite"):
            yield f"{model} NaN or infinite for {counted(metrics['not_finite'], 'client')}"
        for name in filter(is_score, metrics):
            if metrics[name] is None:
                yield f"{model} {name} undefined"
    logged = [(name, value) for name, value in event["logged"].items() if value is not None]
    for name, value in logged[:2]:  # more would not fit into a terminal's line
        yield f"{name} {value:.3f}"
    for name in EPSILONS:
        if event.get(name) is not None:
            yield f"{name.replace('_', ' ')} {event[name]:.4g}"
    yield f"up {format_bytes(event['bytes_up'])} down {format_bytes(event['bytes_down'])}"
    if event.get("sim_s") is not None:
        yield f"simulated {event['sim_s']:,.1f} s"


def format_bytes(count: int) -> str:
    """A number of bytes in binary units: 1536 is `1.5 KiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


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
