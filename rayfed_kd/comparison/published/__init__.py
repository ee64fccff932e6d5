"""The papers' result tables, as data: one YAML file per paper, flat records; and our rows beside them.

Accuracies are percent as printed, FM is its real value, and `mean` is null where a paper only bounds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rayfed_kd.comparison.studies import Published, Study, check_names
from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.yaml_documents import load_yaml

FOLDER = Path(__file__).parent
PrintedValue = tuple[float | None, float | None]  # mean and deviation as printed
_VALUES = ("metric", "mean", "std")


@cache
def _content(path: Path) -> Any:
    """A paper's file: long enough that a study of many rows would wait for it. Nobody changes the records."""
    return load_yaml(path.read_text("utf8"))


def published_rows(paper: str, table: str, where: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The records of a paper's table whose keys have the values in `where`.

    Args:
        paper: the name of its YAML file, as fedkf.
        table: the table's number as printed, as VI.
        where: key -> value that the records must have; empty: all records.

    Returns: records in the paper's order, at least one.

    Raises:
        RecipeError: there is no such paper, table, key or record.
    """
    check_names("published.paper", [paper], sorted(path.stem for path in FOLDER.glob("*.yaml")))
    content = _content(FOLDER / f"{paper}.yaml")
    tables = {entry["id"]: entry for entry in content["tables"]}
    check_names("published.table", [table], tables)
    rows: list[dict[str, Any]] = tables[table]["rows"]
    keys = sorted({key for row in rows for key in row})
    check_names("published.where", where, keys)
    chosen = [row for row in rows if all(row.get(key) == value for key, value in where.items())]
    if not chosen:
        raise RecipeError(f"published.where: no row of {paper}'s table {table} has {dict(where)}")
    return chosen


def published_lines(paper: str, table: str, where: Mapping[str, Any]) -> dict[str, dict[str, PrintedValue]]:
    """A paper's table with one line per system.

    Args:
        paper, table, where: as `published_rows` takes them.

    Returns: label -> metric -> (mean or None, std or None). The label is the system's name with the keys that
        tell it from others, but for those of `where`.

    Raises:
        RecipeError: as `published_rows`.
    """
    lines: dict[str, dict[str, PrintedValue]] = {}
    for row in published_rows(paper, table, where):
        keys = [f"{k} {v}" for k, v in row.items() if k not in (*_VALUES, "method", "more_than", *where)]
        label = ", ".join([str(row.get("method", "")), *keys]).strip(", ")
        lines.setdefault(label, {})[row.get("metric", "value")] = (row.get("mean"), row.get("std"))
    return lines


class PaperRows:
    """One printed table of a study, looked up by our rows.

    Args:
        published: the table, as the study names it.
        study: the study, whose rows link to the paper's.

    Attributes:
        published: as given.
        lines: the table's lines, as `published_lines` gives them.
        metric: the printed metric that our rows are held against; None if the table prints several and the
            study names none.
    """

    def __init__(self, published: Published, study: Study) -> None:
        self.published, self._runs = published, {run.label: run for run in study.runs}
        self.lines = published_lines(published.paper, published.table, published.where)
        metrics = {metric for values in self.lines.values() for metric in values}
        self.metric = published.metric or (metrics.pop() if len(metrics) == 1 else None)

    @property
    def title(self) -> str:
        """Which table it is, as `kdia table 2 (dataset CIFAR-10)`."""
        where = ", ".join(f"{key} {value}" for key, value in self.published.where.items())
        return f"{self.published.paper} table {self.published.table}" + (f" ({where})" if where else "")

    def value(self, label: str, model: str) -> PrintedValue | None:
        """The printed value of our row.

        Args:
            label: the row's label, one of the study's.
            model: the evaluated model.

        Returns: mean and deviation as printed; None if the study links the row to no line of this table.
        """
        link, rows, models = self._runs[label].published, self.published.rows, self.published.models
        if (rows and label not in rows) or (models and model not in models):
            return None
        name = link.get(model) if isinstance(link, dict) else link
        return None if name is None or self.metric is None else self.lines.get(name, {}).get(self.metric)


def printed_text(value: PrintedValue) -> str:
    """A printed value as text: `57.29 ± 0.97`, or `not given` where the paper only bounds it."""
    mean, deviation = value
    if mean is None:
        return "not given"
    return f"{mean:g}" + (f" ± {deviation:g}" if deviation is not None else "")


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's tau-b of two orders of the same rows.

    Concordant less discordant pairs, over the geometric mean of the pairs that each does not tie (Kendall
    1945, The Treatment of Ties in Ranking Problems).

    Args:
        first, second: a number per row, equally many.

    Returns: 1 for the same order, -1 for the reverse; NaN if one of them ties all rows.
    """
    # All ordered pairs: each pair counts twice above and below the line, so the quotient is the same.
    ours, theirs = (np.sign(np.subtract.outer(values, values)) for values in (first, second))
    untied = float(np.sqrt((ours**2).sum() * (theirs**2).sum()))
    return float((ours * theirs).sum()) / untied if untied else float("nan")
