"""Performance profiles of a study's searched rows over all its tables and seeds.

    python benchmarks/profiles.py STUDY [PICTURE]

STUDY is a study's file or name. As Agarwal et al. 2021 (arXiv 2108.13264; rliable) draw them: for each tau
the share of a row's runs whose score lies above tau, and the mean of the middle half of the scores, both with
95 % intervals of a bootstrap that draws seeds within each table. A score is the mean of a run's last
evaluations of the metric that the row's search maximised, over the mean of the row's baseline in the same
table: 1 is as good as that. A row's baseline is the study's, or the one that `baselines` names for its model,
so that clients' own models are held against clients alone. There scores are divided by constants; this mean
is of the same few seeds, so it is drawn with them.
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
TAUS = np.linspace(0.75, 1.25, 101)
DIFFERENCE = "difference to "  # of a statistic in comparison.parquet: the baseline comes behind it
# Baseline -> label of a searched row that is held against it -> (tables, seeds); the baseline is one of them.
Groups = Mapping[str, Mapping[str, np.ndarray]]


def read_groups(study: Study) -> Groups:
    """What a finished study's searched rows reached, by the baseline that comparison.parquet says of them.

    Raises:
        ValueError: a row's space names no METRIC/MODEL, the row has no value of it for some seed, a baseline
            is not searched or not that of all tables, or a table is of a study that the command line changed.
    """
    found: dict[str, dict[str, list[list[float]]]] = {}
    tables = split_into_tables(study)
    for table in tables:
        written = pq.read_table(Path(table.folder) / "comparison.parquet")
        if changed := (written.schema.metadata or {}).get(CHANGED.encode()):
            raise ValueError(f"{table.folder}: of a changed study, {changed.decode()}")
        values, baselines = {}, {}
        for record in written.to_pylist():
            row, statistic = (record["run"], record["model"]), record["statistic"]
            if statistic == "mean of last":
                values[(*row, record["metric"])] = record["seeds"]
            elif statistic.startswith(DIFFERENCE):
                baselines[row] = statistic.removeprefix(DIFFERENCE)
        for run in table.runs:
            if run.search is not None:
                metric, _, model = (read_space(run.search).metric or "").partition("/")
                scores = values.get((run.label, model, metric), [])
                if len(scores) != len(table.seeds):
                    told = f"{run.label}, '{metric}/{model}': {len(scores)} of {len(table.seeds)} seeds"
                    raise ValueError(f"{table.folder}: {told}")
                baseline = baselines.get((run.label, model), run.label)
                found.setdefault(baseline, {}).setdefault(run.label, []).append(scores)
    for baseline, rows in found.items():
        if baseline not in rows or any(len(scores) < len(tables) for scores in rows.values()):
            raise ValueError(f"{baseline} is not searched, or not the baseline of its rows in all tables")
    return {
        baseline: {label: np.array(scores) for label, scores in rows.items()}
        for baseline, rows in found.items()
    }


def share_above(scores: np.ndarray) -> np.ndarray:
    """For each of `TAUS` the share of scores above it. Args: (tables, seeds). Returns: (taus,)."""
    return (scores.reshape(-1, 1) > TAUS).mean(0)


def middle_mean(scores: np.ndarray) -> float:
    """The mean of the scores without the lowest and the highest quarter. Args: (tables, seeds)."""
    ordered = np.sort(scores, axis=None)
    cut = ordered.size // 4
    return float(ordered[cut : ordered.size - cut].mean())


def scores_of(row: np.ndarray, baseline: np.ndarray) -> np.ndarray:
    """A row's values over its baseline's mean in each table. Args: both (tables, seeds)."""
    return row / baseline.mean(axis=1, keepdims=True)


def interval(row: np.ndarray, baseline: np.ndarray, statistic: Callable[[np.ndarray], object]) -> np.ndarray:
    """Both ends of the 95 % interval of a statistic of a row's scores.

    Args:
        row, baseline: their values, (tables, seeds); both have the same seeds in a draw.
        statistic: of scores, (tables, seeds).

    Returns: (2, ...).
    """
    generator, draws = np.random.default_rng(1), []
    for _ in range(DRAWS):
        drawn = generator.integers(row.shape[1], size=row.shape)
        ours, theirs = (np.take_along_axis(values, drawn, axis=1) for values in (row, baseline))
        draws.append(statistic(scores_of(ours, theirs)))
    return np.percentile(draws, [2.5, 97.5], axis=0)


def markdown(groups: Groups) -> list[str]:
    """A table: rows by what they are held against, the best middle half first."""
    taus = (0.9, 1.0, 1.1)
    named = "".join(f" above {tau:g} |" for tau in taus)
    lines = [f"| row | held against | mean of the middle half [95 %] |{named}"]
    lines.append("| --- " * (3 + len(taus)) + "|")
    for baseline, rows in groups.items():
        theirs = rows[baseline]
        scores = {label: scores_of(row, theirs) for label, row in rows.items()}
        for label in sorted(scores, key=lambda label: -middle_mean(scores[label])):
            low, high = interval(rows[label], theirs, middle_mean)
            middle = f"{middle_mean(scores[label]):.3f} [{low:.3f}, {high:.3f}]"
            shares = "".join(f" {100 * np.mean(scores[label] > tau):.0f} % |" for tau in taus)
            lines.append(f"| {label} | {baseline} | {middle} |{shares}")
    return lines


def picture(groups: Groups, path: str) -> None:
    """Draw all rows' profiles, each with its interval, a panel for each baseline."""
    figure = Figure(figsize=(4.5 * len(groups), 4.5), layout="constrained")
    panels = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for axes, (baseline, rows) in zip(panels, groups.items(), strict=True):
        for number, (label, row) in enumerate(rows.items()):
            color, ends = f"C{number % 10}", interval(row, rows[baseline], share_above)
            axes.plot(TAUS, share_above(scores_of(row, rows[baseline])), color=color, label=label)
            axes.fill_between(TAUS, *ends, color=color, alpha=0.1, linewidth=0)
        axes.set(xlabel=f"score, 1: the mean of {baseline}", xlim=(TAUS[0], TAUS[-1]), ylim=(0, 1))
        axes.legend(fontsize="small", loc="lower left")
    panels[0].set(ylabel="share of runs above it")
    figure.savefig(path, dpi=120)


def main(words: Sequence[str]) -> None:
    """Print the table; draw the picture if a file is named."""
    groups = read_groups(read_study(words[0]))
    sys.stdout.write("\n".join(markdown(groups)) + "\n")
    for path in words[1:2]:
        picture(groups, path)


if __name__ == "__main__":
    main(sys.argv[1:])
