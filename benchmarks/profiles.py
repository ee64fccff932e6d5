"""Performance profiles of a study's searched rows over all its tables and seeds.

    python benchmarks/profiles.py STUDY [PICTURE]

As Agarwal et al. 2021 (arXiv 2108.13264; rliable) draw them: for each tau the share of a row's runs whose
score lies above tau, and the mean of the middle half of the scores, both with 95 % intervals of a bootstrap
that draws seeds within each table. A score is the mean of a run's last evaluations of the metric that the
row's search maximised, over the first row's mean in the same table: 1 is as good as the first row.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from rayfed_kd.comparison.studies import Study, read_study
from rayfed_kd.comparison.study_changes import split_into_tables
from rayfed_kd.tuning.space import read_space

DRAWS = 2_000  # of the bootstrap
TAUS = np.linspace(0.5, 1.5, 101)
Scores = Mapping[str, np.ndarray]  # label -> (tables, seeds)


def read_scores(study: Study) -> Scores:
    """The scores of a finished study's searched rows.

    Raises: ValueError if a row's space names no METRIC/MODEL, or the row has no value of it for some seed.
    """
    found: dict[str, list[list[float]]] = {}
    for table in split_into_tables(study):
        rows = pq.read_table(Path(table.folder) / "comparison.parquet").to_pylist()
        values = {
            (row["run"], f"{row['metric']}/{row['model']}"): row["seeds"]
            for row in rows
            if row["statistic"] == "mean of last"
        }
        unit: float | None = None
        for run in table.runs:
            if run.search is not None:
                metric = read_space(run.search).metric or ""
                scores = np.array(values.get((run.label, metric), []))
                if len(scores) != len(table.seeds):
                    raise ValueError(
                        f"{table.folder}: {run.label}, {metric!r}: {len(scores)} of {len(table.seeds)} seeds"
                    )
                unit = unit or float(scores.mean())
                found.setdefault(run.label, []).append(list(scores / unit))
    return {label: np.array(scores) for label, scores in found.items()}


def share_above(scores: np.ndarray) -> np.ndarray:
    """For each of `TAUS` the share of scores above it. Args: (tables, seeds). Returns: (taus,)."""
    return (scores.reshape(-1, 1) > TAUS).mean(0)


def middle_mean(scores: np.ndarray) -> float:
    """The mean of the scores without the lowest and the highest quarter. Args: (tables, seeds)."""
    ordered = np.sort(scores, axis=None)
    cut = ordered.size // 4
    return float(ordered[cut : ordered.size - cut].mean())


def interval(scores: np.ndarray, statistic: Callable[[np.ndarray], object]) -> np.ndarray:
    """Both ends of a statistic's 95 % interval. Args: (tables, seeds). Returns: (2, ...)."""
    generator, (tables, seeds) = np.random.default_rng(1), scores.shape
    draws = [
        statistic(np.take_along_axis(scores, generator.integers(seeds, size=(tables, seeds)), axis=1))
        for _ in range(DRAWS)
    ]
    return np.percentile(draws, [2.5, 97.5], axis=0)


def markdown(scores: Scores) -> list[str]:
    """A table, the row with the best middle half first."""
    taus = (0.9, 1.0, 1.1)
    lines = ["| row | mean of the middle half [95 %] |" + "".join(f" above {tau:g} |" for tau in taus)]
    lines.append("| --- " * (2 + len(taus)) + "|")
    for label in sorted(scores, key=lambda label: -middle_mean(scores[label])):
        low, high = interval(scores[label], middle_mean)
        shares = "".join(f" {100 * np.mean(scores[label] > tau):.0f} % |" for tau in taus)
        lines.append(f"| {label} | {middle_mean(scores[label]):.3f} [{low:.3f}, {high:.3f}] |{shares}")
    return lines


def picture(scores: Scores, path: str) -> None:
    """Draw all rows' profiles, each with its interval."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for number, (label, row) in enumerate(scores.items()):
        color, style = f"C{number % 10}", "-" if number < 10 else "--"
        axes.plot(TAUS, share_above(row), style, color=color, label=label)
        axes.fill_between(TAUS, *interval(row, share_above), color=color, alpha=0.1, linewidth=0)
    axes.set(xlabel="score, 1: the first row's mean", ylabel="share of runs above it", ylim=(0, 1))
    axes.legend(fontsize="small", ncols=2)
    figure.savefig(path, dpi=120)


def main(words: Sequence[str]) -> None:
    """Print the table; draw the picture if a file is named."""
    scores = read_scores(read_study(words[0]))
    sys.stdout.write("\n".join(markdown(scores)) + "\n")
    for path in words[1:2]:
        picture(scores, path)


if __name__ == "__main__":
    main(sys.argv[1:])
