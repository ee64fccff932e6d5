"""The section that holds runs' headline against what it cost: bytes, epsilon or seconds."""

from __future__ import annotations

from collections.abc import Sequence

from rayfed_kd.comparison.costs import AXES, AxisName
from rayfed_kd.comparison.differences import metric_scale
from rayfed_kd.comparison.studies import check_names
from rayfed_kd.comparison.table_text import metric_title
from rayfed_kd.comparison.writers.mean_lines import lines_over_cost
from rayfed_kd.errors import RecipeError, in_words
from rayfed_kd.reporting.pictures import Picture, lines_picture
from rayfed_kd.reporting.reading import Run
from rayfed_kd.reporting.sections import Section, series_curves, series_looks
from rayfed_kd.results.summary import HEADLINES


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
    curves, title = series_curves(runs, headline), metric_title(headline)
    for axis in [axis for axis in AXES if axis in asked] or _own_axes(runs):
        lines, over = lines_over_cost(curves, looks, metric_scale(headline), axis), AXES[axis].title
        without = [name for name, line in zip(curves, lines, strict=True) if line.dotted]
        if len(without) < len(lines):
            shown = f"{title}, by {over}"
            described = f"{shown}: a line per row and model"
            pictures.append(lines_picture(shown, lines, over, described, costs=True))
            if without:
                notes.append(f"{over}: {in_words(without)} ({AXES[axis].none}): dotted, at the last value.")
        elif asked:
            raise RecipeError(f"--against {axis}: no run has {over}, so there is nothing to draw")
    if not pictures:
        return None
    about = (
        "A point for each evaluated round, a ring at the last one; values and costs are means over seeds. "
        "The axis is logarithmic where costs span more than a decade."
    )
    return Section("Against costs", [about, *notes], (), looks, pictures)


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
    found = [metric for run in runs for _, metric in run.curves]
    counts = {metric: found.count(metric) for metric in HEADLINES}
    most = max(HEADLINES, key=counts.__getitem__)
    return most if counts[most] else None
