"""What a run shows while it goes and when it ends: live with a terminal, plain lines without one."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

COLUMNS = (("amp", "AMP"), ("fm", "FM"), ("wlp", "WLP"), ("ua", "UA"), ("server_accuracy", "official test"))


class RunConsole:
    """A run's face.

    Args:
        stream: where to write; None: standard output.
    """

    def __init__(self, stream: IO[str] | None = None) -> None:
        # No markup: a method's names and a folder's may hold brackets.
        self._console = Console(file=stream, highlight=False, soft_wrap=True, markup=False)
        self._progress: Progress | None = None
        self._last_metrics: Mapping[str, Any] = {}

    def start(self, title: str) -> None:
        """Says what runs."""
        self._console.print(title)
        if self._console.is_interactive:  # a dumb terminal has no live display
            columns = (
                TextColumn("round"),
                MofNCompleteColumn(),
                BarColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}", markup=False),
            )
            self._progress = Progress(*columns, console=self._console)
            self._progress.add_task("starting", total=None)
            self._progress.start()

    def round(self, event: Mapping[str, Any]) -> None:
        """Shows a finished round; live, with the last evaluation until there is another one."""
        if self._progress is None:
            self._console.print(round_line(event))
            return
        self._last_metrics = event.get("metrics") or self._last_metrics
        shown = "  ".join(_facts({**event, "metrics": self._last_metrics}))
        task = self._progress.task_ids[0]
        self._progress.update(task, completed=event["round"], total=event["rounds"], description=shown)

    def message(self, text: str) -> None:
        """Says something in between; a live display stays below it."""
        self._console.print(text)

    def stop(self) -> None:
        """Ends the live display; the terminal is as before."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def finish(
        self, summary: Mapping[str, Any], folder: Path, seconds: float, *, resumed: bool = False
    ) -> None:
        """The table of models, the run's folder, and how to look at it.

        `resumed`: rounds, simulated time and bytes are also of what was there before these seconds.
        """
        self.stop()
        table = Table(title=f"{summary['rounds']} rounds, {summary['status']}")
        table.add_column("model")
        for _, title in COLUMNS:
            table.add_column(title, justify="right")
        for name, found in summary["models"].items():
            for title, values in ((name, found["last"]), (f"{name}, best", found["best"])):
                table.add_row(Text(title), *(_value(metric, values[metric]) for metric, _ in COLUMNS))
        self._console.print(table)
        sent = summary["bytes"]
        in_rounds = f"{summary['wall_s']:.1f} s"
        self._console.print(
            (
                f"{seconds:.1f} s since it was resumed; the whole run: {in_rounds} in rounds; "
                if resumed
                else f"{seconds:.1f} s in all, {in_rounds} of it in rounds; "
            )
            + (f"{summary['sim_s']:,.1f} simulated s; " if summary.get("sim_s") is not None else "")
            + f"up {format_bytes(sent['up'])}, down {format_bytes(sent['down'])}"
        )
        self._console.print(f"run folder   {folder}")
        self._console.print(f"look at it   tensorboard --logdir {shlex.quote(str(folder / 'tensorboard'))}")


def round_line(event: Mapping[str, Any]) -> str:
    """A finished round in a line."""
    return f"round {event['round']}/{event['rounds']}  {'  '.join(_facts(event))}"


def _facts(event: Mapping[str, Any]) -> Iterator[str]:
    for model, metrics in (event.get("metrics") or {}).items():
        values = [
            f"{name} {metrics[name]:.3f}"
            for name in ("amp", "wlp", "server_accuracy")
            if metrics.get(name) is not None
        ]
        if values:
            yield f"{model} {' '.join(values)}"
    losses = [(name, value) for name, value in event["losses"].items() if value is not None]
    for name, value in losses[:2]:
        yield f"{name} {value:.3f}"
    yield f"up {format_bytes(event['bytes_up'])} down {format_bytes(event['bytes_down'])}"
    if event.get("sim_s") is not None:
        yield f"simulated {event['sim_s']:,.1f} s"
    yield f"{event['round_s']:.1f} s"


def _value(metric: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if metric == "fm" else f"{100 * value:.2f} %"


def format_bytes(count: int) -> str:
    """A count of bytes for people: 1536 is 1.5 KiB."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
