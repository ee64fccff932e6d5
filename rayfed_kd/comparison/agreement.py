"""Our rows beside a paper's: which printed value belongs to which row, and how far both orders agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rayfed_kd.comparison.published import published_lines
from rayfed_kd.comparison.studies import Published, Study

Printed = tuple[float | None, float | None]


class PaperRows:
    """One printed table of a study, looked up by our rows.

    Attributes:
        named: the table, as the study names it.
        lines: its lines, see `published_lines`.
        metric: the printed metric that our rows are held against; None if the table prints several and the
            study names none.
    """

    def __init__(self, named: Published, study: Study) -> None:
        self.named, self._runs = named, {run.label: run for run in study.runs}
        self.lines: list[dict[str, Any]] = published_lines(named.paper, named.table, named.where)
        metrics = {metric for line in self.lines for metric in line["values"]}
        self.metric = named.metric or (metrics.pop() if len(metrics) == 1 else None)

    def value(self, label: str, model: str) -> Printed | None:
        """The printed mean and deviation of our row; None if the study links it to none here."""
        wanted, rows, models = self._runs[label].published, self.named.rows, self.named.models
        if (rows and label not in rows) or (models and model not in models):
            return None
        name = wanted.get(model) if isinstance(wanted, dict) else wanted
        found: list[Printed] = [
            line["values"][self.metric]
            for line in self.lines
            if line["label"] == name and self.metric in line["values"]
        ]
        return found[0] if found else None


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's tau-b of two orders of the same rows: 1 the same, -1 the reverse; NaN if one ties all.

    Concordant less discordant pairs, over the geometric mean of the pairs that each does not tie (Kendall
    1945, The Treatment of Ties in Ranking Problems).
    """
    ours, theirs = (np.sign(np.subtract.outer(values, values)) for values in (first, second))
    untied = float(np.sqrt((ours**2).sum() * (theirs**2).sum()))
    return float((ours * theirs).sum()) / untied if untied else float("nan")
