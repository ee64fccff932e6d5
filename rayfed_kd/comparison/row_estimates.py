"""How long a study takes on this machine, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from rayfed_kd.comparison.planning import plan_runs
from rayfed_kd.comparison.studies import Study
from rayfed_kd.experiment.estimating import Estimate, estimate
from rayfed_kd.experiment.result import Tell
from rayfed_kd.results.screen_table import screen_table
from rayfed_kd.results.time_left import clock_text


@dataclass(frozen=True)
class RowEstimate:
    """A row's estimate.

    Attributes:
        label: the row's.
        one: the estimate of one of its runs.
        runs: how many runs of it are not finished, one for each seed.
    """

    label: str
    one: Estimate
    runs: int

    @property
    def seconds(self) -> float:
        """Seconds of the runs that are not finished, one after another."""
        return self.runs * self.one.run_s


def estimate_rows(study: Study, tell: Tell) -> list[RowEstimate]:
    """Estimate each row's runs that are not finished; see `rayfed_kd.estimate`.

    Args:
        study: one table's.
        tell: called with a line before each measurement.

    Raises: as `rayfed_kd.estimate`.
    """
    rows = []
    unfinished = [run for run in plan_runs(study) if not run.done]
    for label in dict.fromkeys(run.label for run in unfinished):
        runs = [run for run in unfinished if run.label == label]

        def tell_of_row(line: str, label: str = label) -> None:
            tell(f"{label}: {line}")

        with runs[0].naming():
            one = estimate(runs[0].source, runs[0].overrides, tell=tell_of_row)
        rows.append(RowEstimate(label, one, len(runs)))
    return rows


def estimate_table(title: str, rows: Sequence[RowEstimate]) -> Table:
    """The rows' estimates, with their sum.

    Args:
        title: of the study's table.
        rows: as `estimate_rows` gives them.
    """
    header = ("run", "clients, s a round", "server, s a round", "evaluation, s", "a run", "runs", "all")
    lines = []
    for row in rows:
        seconds = (row.one.clients_s, row.one.server_s, row.one.evaluation_s)
        texts = [f"{value:.2f}" for value in seconds]
        lines.append([row.label, *texts, clock_text(row.one.run_s), str(row.runs), clock_text(row.seconds)])
    lines.append(["all rows", "", "", "", "", str(sum(row.runs for row in rows)), total_text(rows)])
    return screen_table(title, header, lines)


def total_text(rows: Sequence[RowEstimate]) -> str:
    """All rows' time, as hours, minutes and seconds."""
    return clock_text(sum(row.seconds for row in rows))
