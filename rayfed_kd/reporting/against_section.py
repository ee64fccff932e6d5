"""The section that holds runs' headline against what it cost: bytes, epsilon or seconds."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from rayfed_kd.comparison.costs import AXES, AxisName, Cost, costs_by_round
from rayfed_kd.comparison.differences import metric_scale
from rayfed_kd.comparison.studies import check_names
from rayfed_kd.comparison.table_text import metric_title
from rayfed_kd.errors import RecipeError, in_words
from rayfed_kd.reporting.pictures import Picture, lines_picture
from rayfed_kd.reporting.reading import Run
from rayfed_kd.reporting.sections import Section, series_looks, series_name
from rayfed_kd.results.charts.lines import Line
from rayfed_kd.results.schemas import with_scores
from rayfed_kd.results.summary import HEADLINES

Seed = Mapping[int, tuple[float | None, float]]  # round -> what it had cost in the axis' unit, and the value
Series = Mapping[str, Sequence[Seed]]


def against_section(runs: Sequence[Run], asked: Sequence[str]) -> Section | None:
    """The headline against costs, a picture for each.

    Args:
        runs: what the report is about.
        asked: names of `AXES`. Without any, bytes where there are several rows, and epsilon where a run has a
            finite one.

    Returns: None if there is nothing to draw.

    Raises:
        RecipeError: an axis that was asked for is none, or no run has such a cost.
    """
    check_names("--against", asked, AXES)
    headline = _headline(runs)
    if headline is None:
        return None
    looks, pictures, notes = series_looks(runs), list[Picture](), list[str]()
    for axis in _asked_axes(asked) or _own_axes(runs):
        series = _series(runs, headline, axis)
        costs = [cost for seeds in series.values() for seed in seeds for cost, _ in seed.values()]
        if any(map(_is_positive, costs)):
            pictures.append(_picture(looks, series, headline, axis))
            notes += _notes(series, axis)
        elif asked:
            raise RecipeError(f"--against {axis}: no run has {AXES[axis].title}, so there is nothing to draw")
    if not pictures:
        return None
    about = (
        "A point for each evaluated round, a ring at the last one; values and costs are means over seeds. "
        "The axis is logarithmic where costs span more than a decade."
    )
    return Section("Against costs", [about, *notes], (), looks, pictures)


def _asked_axes(asked: Sequence[str]) -> list[AxisName]:
    return [axis for axis in AXES if axis in asked]


def _own_axes(runs: Sequence[Run]) -> list[AxisName]:
    axes: list[AxisName] = []
    if len({run.group for run in runs}) > 1:
        axes.append("bytes")
    if any(run.tables["privacy"].num_rows for run in runs):
        axes.append("epsilon")
    return axes


def _headline(runs: Sequence[Run]) -> str | None:
    """The metric of `HEADLINES` that most runs and models have, of equal ones the first; None: none has any.

    Clients' own models have no official test, and should not be missing beside a server's.
    """
    counts = dict.fromkeys(HEADLINES, 0)
    for run in runs:
        by_model = run.tables["metrics"].group_by("model").aggregate([(m, "count") for m in HEADLINES])
        for metric in HEADLINES:
            counts[metric] += sum(count > 0 for count in by_model[f"{metric}_count"].to_pylist())
    most = max(HEADLINES, key=counts.__getitem__)
    return most if counts[most] else None


def _series(runs: Sequence[Run], metric: str, axis: AxisName) -> Series:
    series = defaultdict[str, list[Seed]](list)
    for run in runs:
        costs = costs_by_round(*(run.tables[name].to_pylist() for name in ("rounds", "privacy")))
        points = defaultdict[str, dict[int, tuple[float | None, float]]](dict)
        for row in with_scores({"metrics": run.tables["metrics"].to_pylist()}):
            if row[metric] is not None:
                cost = costs.get(row["round"], Cost(0, 0)).along(axis)
                points[row["model"]][row["round"]] = cost, metric_scale(metric) * row[metric]
        for model, seed in points.items():
            series[series_name(runs, run, model)].append(seed)
    return series


def _is_positive(cost: float | None) -> bool:
    return cost is not None and bool(np.isfinite(cost)) and cost > 0


def _is_flat(seeds: Sequence[Seed]) -> bool:
    """Whether a series has no cost of the axis' kind: it is a line at its last value."""
    return not any(_is_positive(cost) for seed in seeds for cost, _ in seed.values())


def _notes(series: Series, axis: AxisName) -> list[str]:
    flat = [name for name, seeds in series.items() if _is_flat(seeds)]
    if not flat:
        return []
    return [f"{AXES[axis].title}: {in_words(flat)} ({AXES[axis].none}): dotted, at the last value."]


def _picture(looks: Mapping[str, int], series: Series, metric: str, axis: AxisName) -> Picture:
    curves = {name: _mean_line(looks[name], seeds) for name, seeds in series.items() if not _is_flat(seeds)}
    ends = [end for line in curves.values() for end in (line.x[0], line.x[-1]) if len(line.x)]
    lines = list[Line]()
    for name, seeds in series.items():
        if name in curves:
            lines.append(curves[name])
        elif ends:
            last = statistics.fmean(seed[max(seed)][1] for seed in seeds)
            lines.append(Line(looks[name], [min(ends), max(ends)], [last, last], dotted=True))
    title = f"{metric_title(metric)}, by {AXES[axis].title}"
    return lines_picture(title, lines, AXES[axis].title, f"{title}: a line per row and model", costs=True)


def _mean_line(look: int, seeds: Sequence[Seed]) -> Line:
    """The mean of values and costs over seeds, of the rounds in which all have a cost."""
    shared = sorted(set.intersection(*(set(seed) for seed in seeds)))
    rounds = [index for index in shared if all(_is_positive(seed[index][0]) for seed in seeds)]
    costs = np.array([[seed[index][0] for index in rounds] for seed in seeds], dtype=float)
    values = np.array([[seed[index][1] for index in rounds] for seed in seeds])
    spread = values.std(axis=0, ddof=1).tolist() if len(seeds) > 1 else ()
    return Line(look, costs.mean(axis=0).tolist(), values.mean(axis=0).tolist(), spread)
