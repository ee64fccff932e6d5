"""What a page is made of: sections of tables, pictures and text, without any HTML or Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rayfed_kd.comparison.curves import Curve
from rayfed_kd.reporting.pictures import Picture
from rayfed_kd.reporting.reading import Run
from rayfed_kd.results.screen_table import TextTable


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        heading: its title.
        notes: sentences above the tables.
        tables: in order.
        pictures: drawn for the page.
        legend: series -> its look, a number that stands for colour and dashes; of all its pictures.
        images: title -> PNG in base64, drawn by the run.
        folded: title -> text shown as it is, on demand.
    """

    heading: str
    notes: Sequence[str] = ()
    tables: Sequence[TextTable] = ()
    legend: Mapping[str, int] = field(default_factory=dict)
    pictures: Sequence[Picture] = ()
    images: Mapping[str, str] = field(default_factory=dict)
    folded: Mapping[str, str] = field(default_factory=dict)


def series_looks(runs: Sequence[Run]) -> dict[str, int]:
    """Series -> look, for curves of all runs. The seeds of a row share one look.

    Args:
        runs: what the report is about.
    """
    names = [
        series_name(runs, run, model)
        for run in runs
        for table in ("metrics", "clients")  # a kill may leave a round in one of them alone
        for model in run.tables[table]["model"].unique().to_pylist()
    ]
    return {name: look for look, name in enumerate(dict.fromkeys(names))}


def series_curves(runs: Sequence[Run], metric: str) -> dict[str, list[Curve]]:
    """Series -> the metric's curves of all its runs.

    Args:
        runs: what the report is about.
        metric: the metric's column, or a name of `score_name`.
    """
    series: dict[str, list[Curve]] = {}
    for run in runs:
        for (model, name), curve in run.curves.items():
            if name == metric:
                series.setdefault(series_name(runs, run, model), []).append(curve)
    return series


def series_name(runs: Sequence[Run], run: Run, model: str) -> str:
    """The name of a run's curve in a legend: row and model, without what all curves share.

    Args:
        runs: all runs of the report.
        run: one of them.
        model: one of its evaluated models.
    """
    if len({other.group for other in runs}) == 1:
        return model
    return run.group if len(run.summary["models"]) == 1 else f"{run.group}, {model}"
