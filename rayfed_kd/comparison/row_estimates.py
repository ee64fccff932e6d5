"""How long a study takes on this machine, row by row."""

from __future__ import annotations

from collections.abc import Iterator

from rayfed_kd.comparison.planning import plan_runs
from rayfed_kd.comparison.studies import Study
from rayfed_kd.experiment.estimating import Estimate, estimate
from rayfed_kd.experiment.result import Tell


def estimate_rows(study: Study, tell: Tell) -> Iterator[tuple[str, Estimate, int]]:
    """Estimate each row's runs that are not finished; see `rayfed_kd.estimate`.

    Args:
        study: one table's.
        tell: called with a line before each measurement.

    Yields: the row's label, the estimate of one of its runs, and how many of them are not finished.

    Raises: as `rayfed_kd.estimate`.
    """
    unfinished = [run for run in plan_runs(study) if not run.done]
    for label in dict.fromkeys(run.label for run in unfinished):
        runs = [run for run in unfinished if run.label == label]

        def tell_of_row(line: str, label: str = label) -> None:
            tell(f"{label}: {line}")

        with runs[0].naming():
            one = estimate(runs[0].source, runs[0].overrides, tell=tell_of_row)
        yield label, one, len(runs)
