"""Sections about results: metrics, clients' accuracies, the partition, and what methods logged and drew."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from rayfed_kd.comparison.curves import AXES, AxisName
from rayfed_kd.comparison.writers.pictures import mean_line
from rayfed_kd.errors import DataError, span
from rayfed_kd.files.whole import read_parquet
from rayfed_kd.reporting.reading import Run
from rayfed_kd.reporting.sections import (
    SERIES,
    Picture,
    Section,
    base64_png,
    lines_picture,
    panel,
    partition_picture,
    series_curves,
    series_looks,
    series_name,
)
from rayfed_kd.results.charts.bars import PERCENTS, draw_accuracies
from rayfed_kd.results.charts.lines import Line
from rayfed_kd.results.charts.partition import MOST_CLIENTS
from rayfed_kd.results.names import metric_scale, metric_text, metric_title, model_notes
from rayfed_kd.results.scores import is_score
from rayfed_kd.results.screen_table import TextTable
from rayfed_kd.results.summary import HEADLINES, LAST, shown_metrics
from rayfed_kd.results.summary_table import untested_notes

QUANTILES = {"least": 0, "lower quartile": 0.25, "median": 0.5, "upper quartile": 0.75, "most": 1}
SCORES = (
    "official_NAME and local_NAME: metrics that the recipe names, on the official test part and on the "
    "clients' test parts together."
)
STATISTICS = ("last", "best", f"last{LAST}")  # of a model in a run's summary


def metrics_section(runs: Sequence[Run]) -> Section | None:
    """Every metric's last, best and mean of the last ten, with curves over rounds and simulated seconds.

    Args:
        runs: what the report is about.

    Returns: None if no run was evaluated.
    """
    rows, averaged = [], set()
    for run in runs:
        for model, numbers in run.summary["models"].items():
            averaged.add(min(LAST, numbers["evaluations"]))
            for metric in numbers["last"]:
                if any(cells := [metric_text(metric, numbers[key][metric]) for key in STATISTICS]):
                    rows.append((run.label, model, metric_title(metric), *cells, str(numbers["best_round"])))
    if not rows:
        return None
    mean = f"mean of last {span(averaged)} evaluations"
    header = ("run", "model", "metric", "last", "best", mean, "best in round")
    looks = series_looks(runs)
    metrics = dict.fromkeys(metric for run in runs for metric in shown_metrics(run.summary))
    pictures = [_curves(runs, looks, metric) for metric in metrics]
    headline = next(metric for metric in HEADLINES if any(metric_title(metric) == row[2] for row in rows))
    pictures.append(_curves(runs, looks, headline, "sim_s"))
    return Section(
        "Metrics by round",
        [
            "AMP: accuracy on clients' test samples, weighted by size; FM: its variance over clients "
            "(smaller is better); WLP: the worst client's; UA: the plain mean.",
            "Best: all metrics of a model in one round, the first in which its accuracy on the official test "
            "part, else AMP, is largest.",
            *([SCORES] if any(map(is_score, metrics)) else []),
            *(["Curves: the mean over seeds, and a band of one sample deviation."] if _seeded(runs) else []),
            *(f"{line}." for line in model_notes(row[1] for row in rows)),
            *(f"{line}." for line in untested_notes({run.label: run.summary for run in runs})),
        ],
        [TextTable("Last, best, mean", header, rows, left=3)],
        looks,
        [picture for picture in pictures if picture is not None],
    )


def _curves(
    runs: Sequence[Run], looks: Mapping[str, int], metric: str, axis: AxisName | None = None
) -> Picture | None:
    lines = list[Line]()
    for name, curves in series_curves(runs, metric).items():
        # Simulated seconds differ by seed, so no second has a mean: each seed has its line there.
        groups = [curves] if axis is None else [[curve] for curve in curves]
        lines += [mean_line(looks[name], group, metric_scale(metric), axis) for group in groups]
    if not any(line.x for line in lines):
        return None
    title = metric_title(metric) + ("" if axis is None else ", by simulated second")
    across = "round" if axis is None else AXES[axis].title
    return lines_picture(title, lines, across, f"{title}: a line per row and model")


def _seeded(runs: Sequence[Run]) -> bool:
    return len(runs) > len({run.group for run in runs})


def clients_section(runs: Sequence[Run]) -> Section | None:
    """How accuracies are distributed over clients in the last evaluated round.

    Args:
        runs: what the report is about.

    Returns: None if no run tested its clients.
    """
    rows, pooled = [], defaultdict[str, list[float]](list)
    for run in runs:
        for model, percents in _client_accuracies(run).items():
            pooled[series_name(runs, run, model)] += percents
            points = np.quantile(percents, [*QUANTILES.values()])
            cells = [f"{value:.2f}" for value in (*points, np.mean(percents))]
            rows.append((run.label, model, str(len(percents)), *cells))
    if not rows:
        return None
    header = ("run", "model", "clients", *QUANTILES, "mean")
    looks = series_looks(runs)
    highest = max(np.histogram(percents, PERCENTS)[0].max() for percents in pooled.values())
    pictures = []
    for name, values in pooled.items():
        colour = SERIES[looks[name] % len(SERIES)]
        draw = partial(draw_accuracies, percents=values, colour=colour, highest=highest)
        pictures.append(panel(name, f"Histogram of {len(values)} accuracies, 5 points a bar", draw))
    note = (
        "Accuracy on each client's own test part, or on the official one where `partition.test` says so, "
        "percent, in the last evaluated round"
    )
    return Section(
        "Accuracy over clients",
        [f"{note}{'; a picture has the clients of all its seeds' if _seeded(runs) else ''}."],
        [TextTable("Client accuracies, %", header, rows, left=2)],
        pictures=pictures,
    )


def _client_accuracies(run: Run) -> dict[str, list[float]]:
    """Model -> percent per client with test samples, last evaluated round."""
    clients, percents = run.tables["clients"], dict[str, list[float]]()
    last = clients.filter(pc.equal(clients["round"], pc.max(clients["round"])))
    for row in last.to_pylist():
        if row["accuracy"] is not None:
            percents.setdefault(row["model"], []).append(100 * row["accuracy"])
    return percents


def partition_section(runs: Sequence[Run]) -> Section | None:
    """Samples by client and class: a picture and a table per split, however many runs share it.

    Args:
        runs: what the report is about.

    Returns: None if no run's folder tells of its split.
    """
    tables, pictures, notes = [], [], []
    for path, labels in _splits(runs):
        title = f"Samples that clients hold, {labels[0]}"
        if len(labels) > 1:
            notes.append(f"{', '.join(labels[1:])}: the split of {labels[0]}.")
        counts, names = _class_counts(path)
        pictures.append(partition_picture(counts, names, title))
        rows = [(str(client), f"{row.sum():,}", *map(str, row)) for client, row in enumerate(counts)]
        hidden = f", the first {MOST_CLIENTS} of {len(rows)} clients" if len(rows) > MOST_CLIENTS else ""
        tables.append(TextTable(f"{title}, by class{hidden}", ("client", "all", *names), rows[:MOST_CLIENTS]))
    return Section("Partition", notes, tables, pictures=pictures) if tables else None


def _splits(runs: Sequence[Run]) -> list[tuple[Path, list[str]]]:
    """Files that tell of a split, each with the labels of the runs that have it."""
    splits: dict[bytes, tuple[Path, list[str]]] = {}  # by the file's content
    for run in runs:
        path = run.folder / "classes.parquet"
        if path.is_file():
            splits.setdefault(path.read_bytes(), (path, []))[1].append(run.label)
    return list(splits.values())


def _class_counts(path: Path) -> tuple[Any, list[str]]:
    table = read_parquet(path)
    try:
        client, samples = table["client"].to_numpy(), table["samples"].to_numpy()
        counts = samples.reshape(int(client.max()) + 1, -1)
        return counts, table["class"].to_pylist()[: counts.shape[1]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{path} is damaged: {error}") from None


def logged_section(runs: Sequence[Run]) -> Section | None:
    """What methods logged, as means over each round, and the pictures that they drew last.

    Args:
        runs: what the report is about.

    Returns: None if no method logged or drew anything.
    """
    rows, lines, looks = [], defaultdict[str, list[Line]](list), dict[str, int]()
    for run in runs:
        points = defaultdict(list)
        for row in run.tables["rounds"].to_pylist():
            for name, value in row["logged"] or ():
                points[name].append((row["round"], value))
        for name, logged in points.items():
            look = looks.setdefault(run.group, len(looks))
            lines[name].append(Line(look, *zip(*logged, strict=True)))
            values = [value for _, value in logged]
            ends = (values[0], values[-1], np.fmin.reduce(values), np.fmax.reduce(values))  # NaN is neither
            rows.append((run.label, name, *(f"{value:.6g}" for value in ends)))
    images = {f"{path.stem}, {run.label}": base64_png(path) for run in runs for path in _last_drawn(run)}
    if not (rows or images):
        return None
    header = ("run", "name", "first round", "last round", "least", "most")
    pictures = [lines_picture(n, ls, "round", f"{n} by round, a line per run") for n, ls in lines.items()]
    tables = [TextTable("Logged, mean over a round", header, rows, left=2)] if rows else []
    return Section("Logged by the method", (), tables, looks if len(looks) > 1 else {}, pictures, images)


def _last_drawn(run: Run) -> Iterable[Path]:
    """The newest of each of a method's own pictures."""
    # NAME-ROUND.png with six digits: sorted by name, the last of each name is the newest.
    paths = sorted((run.folder / "figures").glob("[!.]*-??????.png"))  # no unfinished ones
    return {path.stem[:-7]: path for path in paths}.values()
