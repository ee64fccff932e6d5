"""Our rows beside a paper's: which printed value belongs to which row, and how far two orders agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rayfed_kd.comparison.published import published_lines
from rayfed_kd.comparison.studies import Published, Study

PrintedValue = tuple[float | None, float | None]  # mean and deviation as printed


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
        self.lines: list[dict[str, Any]] = published_lines(published.paper, published.table, published.where)
        metrics = {metric for line in self.lines for metric in line["values"]}
        self.metric = published.metric or (metrics.pop() if len(metrics) == 1 else None)

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
        values: list[PrintedValue] = [
            line["values"][self.metric]
            for line in self.lines
            if line["label"] == name and self.metric in line["values"]
        ]
        return values[0] if values else None


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
