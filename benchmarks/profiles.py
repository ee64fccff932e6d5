"""Performance profiles of a study's searched rows over all its tables and seeds.

    python benchmarks/profiles.py STUDY [PICTURE]

STUDY is a study's file or name. As Agarwal et al. 2021 (arXiv 2108.13264; rliable) draw them: for each tau
the share of a row's runs whose score lies above tau, and the mean of the middle half of the scores, both with
95 % intervals of a bootstrap that draws seeds within each table. A score is the mean of a run's last
evaluations of the metric that the row's search maximised, over the mean of the first searched row in the same
table: 1 is as good as that row, whatever metrics the two have. There scores are divided by constants; this
mean is of the same few seeds, so it is drawn with them.
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
from rayfed_kd.comparison.writers.parquet import CHANGED
from rayfed_kd.tuning.space import read_space

DRAWS = 2_000  # of the bootstrap
TAUS = np.linspace(0.5, 1.5, 101)
Values = Mapping[str, np.ndarray]  # label -> (tables, seeds), of the searched rows


def read_values(study: Study) -> Values:
    """What a finished study's searched rows reached.

    Raises:
        ValueError: a row's space names no METRIC/MODEL, the row has no value of it for some seed, or a table
            is of a study that the command line had changed.
    """
    found: dict[str, list[list[float]]] = {}
    for table in split_into_tables(study):
        written = pq.read_table(Path(table.folder) / "comparison.parquet")
        if changed := (written.schema.metadata or {}).get(CHANGED.encode()):
            raise ValueError(f"{table.folder}: of a changed study, {changed.decode()}")
        rows = written.to_pylist()
        values = {
            (row["run"], f"{row['metric']}/{row['model']}"): row["seeds"]
            for row in rows
            if row["statistic"] == "mean of last"
        }
        for run in table.runs:
            if run.search is not None:
                metric = read_space(run.search).metric or ""
                scores = np.array(values.get((run.label, metric), []))
                if len(scores) != len(table.seeds):
                    raise ValueError(
                        f"{table.folder}: {run.label}, {metric!r}: {len(scores)} of {len(table.seeds)} seeds"
                    )
                found.setdefault(run.label, []).append(list(scores))
    return {label: np.array(scores) for label, scores in found.items()}


def share_above(scores: np.ndarray) -> np.ndarray:
    """For each of `TAUS` the share of scores above it. Args: (tables, seeds). Returns: (taus,)."""
    return (scores.reshape(-1, 1) > TAUS).mean(0)


def middle_mean(scores: np.ndarray) -> float:
    """The mean of the scores without the lowest and the highest quarter. Args: (tables, seeds)."""
    ordered = np.sort(scores, axis=None)
    cut = ordered.size // 4
    return float(ordered[cut : ordered.size - cut].mean())


def scores_of(row: np.ndarray, first: np.ndarray) -> np.ndarray:
    """A row's values over the first row's mean in each table. Args: both (tables, seeds)."""
    return row / first.mean(axis=1, keepdims=True)


def interval(row: np.ndarray, first: np.ndarray, statistic: Callable[[np.ndarray], object]) -> np.ndarray:
    """Both ends of the 95 % interval of a statistic of a row's scores.

    Args:
        row, first: its values and the first row's, (tables, seeds); both have the same seeds in a draw.
        statistic: of scores, (tables, seeds).

    Returns: (2, ...).
    """
    generator, draws = np.random.default_rng(1), []
    for _ in range(DRAWS):
        drawn = generator.integers(row.shape[1], size=row.shape)
        ours, theirs = (np.take_along_axis(values, drawn, axis=1) for values in (row, first))
        draws.append(statistic(scores_of(ours, theirs)))
    return np.percentile(draws, [2.5, 97.5], axis=0)


def markdown(values: Values) -> list[str]:
    """A table, the row with the best middle half first."""
    taus, first = (0.9, 1.0, 1.1), next(iter(values.values()))
    scores = {label: scores_of(row, first) for label, row in values.items()}
    lines = ["| row | mean of the middle half [95 %] |" + "".join(f" above {tau:g} |" for tau in taus)]
    lines.append("| --- " * (2 + len(taus)) + "|")
    for label in sorted(scores, key=lambda label: -middle_mean(scores[label])):
        low, high = interval(values[label], first, middle_mean)
        shares = "".join(f" {100 * np.mean(scores[label] > tau):.0f} % |" for tau in taus)
        lines.append(f"| {label} | {middle_mean(scores[label]):.3f} [{low:.3f}, {high:.3f}] |{shares}")
    return lines


def picture(values: Values, path: str) -> None:
    """Draw all rows' profiles, each with its interval."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes, first = figure.subplots(), next(iter(values.values()))
    for number, (label, row) in enumerate(values.items()):
        color, style = f"C{number % 10}", "-" if number < 10 else "--"
        axes.plot(TAUS, share_above(scores_of(row, first)), style, color=color, label=label)
        axes.fill_between(TAUS, *interval(row, first, share_above), color=color, alpha=0.1, linewidth=0)
    unit = f"mean of {next(iter(values))}"
    axes.set(xlabel=f"score, 1: the {unit}", ylabel="share of runs above it", ylim=(0, 1))
    axes.legend(fontsize="small", ncols=2)
    figure.savefig(path, dpi=120)


def main(words: Sequence[str]) -> None:
    """Print the table; draw the picture if a file is named."""
    values = read_values(read_study(words[0]))
    sys.stdout.write("\n".join(markdown(values)) + "\n")
    for path in words[1:2]:
        picture(values, path)


if __name__ == "__main__":
    main(sys.argv[1:])
