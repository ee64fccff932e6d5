"""What a run shows while it goes and when it ends.

A terminal gets a live progress bar, a file or pipe plain lines.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rayfed_kd.results.summary_table import summary_notes, summary_table


class RunConsole:
    """Shows one run, from its title to its table of results.

    Args:
        stream: where to write; None: standard output.
    """

    def __init__(self, stream: IO[str] | None = None) -> None:
        # No markup: a method's names and a folder's may hold brackets.
        self._console = Console(file=stream, highlight=False, soft_wrap=True, markup=False)
        self._progress: Progress | None = None
        self._last_metrics: Mapping[str, Any] = {}

    def start(self, title: str) -> None:
        """Print the command that runs, and start the progress bar on a terminal."""
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
        """Show a finished round. The progress bar keeps the last evaluation's numbers until the next one.

        Args:
            event: as `RunRecorder` makes it.
        """
        if self._progress is None:
            self._console.print(round_line(event))
            return
        self._last_metrics = event.get("metrics") or self._last_metrics
        shown = "  ".join(_event_texts({**event, "metrics": self._last_metrics}))
        task = self._progress.task_ids[0]
        self._progress.update(task, completed=event["round"], total=event["rounds"], description=shown)

    def message(self, text: str) -> None:
        """Print a line; the progress bar stays below it."""
        self._console.print(text)

    def stop(self) -> None:
        """End the progress bar; the terminal is as before. May be called again."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

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
        self._console.print(summary_table(summary))
        for note in summary_notes(summary):
            self._console.print(note)
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
    """A finished round in a line, as `round 3/10  oca amp 0.412  up 1.5 KiB down 3.0 MiB  2.1 s`."""
    return f"round {event['round']}/{event['rounds']}  {'  '.join(_event_texts(event))}"


def _event_texts(event: Mapping[str, Any]) -> Iterator[str]:
    for model, metrics in (event.get("metrics") or {}).items():
        values = [
            f"{name} {metrics[name]:.3f}"
            for name in ("amp", "wlp", "server_accuracy")
            if metrics.get(name) is not None
        ]
        if values:
            yield f"{model} {' '.join(values)}"
    losses = [(name, value) for name, value in event["losses"].items() if value is not None]
    for name, value in losses[:2]:  # more would not fit into a terminal's line
        yield f"{name} {value:.3f}"
    yield f"up {format_bytes(event['bytes_up'])} down {format_bytes(event['bytes_down'])}"
    if event.get("sim_s") is not None:
        yield f"simulated {event['sim_s']:,.1f} s"
    yield f"{event['round_s']:.1f} s"


def format_bytes(count: int) -> str:
    """A number of bytes in binary units: 1536 is `1.5 KiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
