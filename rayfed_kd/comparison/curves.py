"""Curves of a comparison's runs, read from the tables that each run left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from rayfed_kd.comparison.costs import Cost, costs_by_round
from rayfed_kd.results.names import is_score, smaller_is_better, with_scores
from rayfed_kd.results.summary import METRICS, SMALLER_IS_BETTER
from rayfed_kd.results.tables import read_table

if TYPE_CHECKING:
    from rayfed_kd.comparison.planning import PlannedRun

CURVE_TABLES = ("rounds", "privacy", "metrics", "scores")


@dataclass(frozen=True)
class Curve:
    """One run's metric by evaluated round, with what the run had cost until then. All lists are as long.

    Attributes:
        rounds: the evaluated rounds, ascending.
        values: the metric after each of them.
        costs: what the run had cost after each of them.
        better: gives the better one of several values, `max` or `min`.
    """

    rounds: list[int]
    values: list[float]
    costs: list[Cost]
    better: Callable[[Iterable[float]], float] = max

    def at(self, index: int) -> tuple[float, Cost]:
        """The value after an evaluated round, and what the run had cost then."""
        place = self.rounds.index(index)
        return self.values[place], self.costs[place]

    def reaches(self, value: float, target: float) -> bool:
        """Whether a value is at least as good as a target."""
        return self.better((value, target)) == value


class CurveKey(NamedTuple):
    """Which curve: the row's label, the evaluated model, the seed and the metric's column."""

    label: str
    model: str
    seed: int
    metric: str


def read_curves(planned: Sequence[PlannedRun]) -> dict[CurveKey, Curve]:
    """Read every metric's curve from the runs' tables.

    Args:
        planned: finished runs.

    Returns: a curve per row, evaluated model, seed and metric that has a value; a run's models in the order
        in which its method names them.
    """
    curves: dict[CurveKey, Curve] = {}
    for run in planned:
        tables = {name: read_table(run.folder / "tables", name) for name in CURVE_TABLES}
        for (model, metric), curve in curves_of(tables).items():
            curves[CurveKey(run.label, model, run.seed, metric)] = curve
    return curves


def curves_of(tables: Mapping[str, pa.Table]) -> dict[tuple[str, str], Curve]:
    """The curves of one run.

    Args:
        tables: those of `CURVE_TABLES`.

    Returns: (evaluated model, metric) -> curve.
    """
    rows = {name: tables[name].to_pylist() for name in CURVE_TABLES}
    costs = costs_by_round(rows["rounds"], rows["privacy"])
    falling = {*SMALLER_IS_BETTER, *smaller_is_better(rows["scores"])}
    curves: dict[tuple[str, str], Curve] = {}
    for row in with_scores(rows):
        for metric in (*METRICS, *filter(is_score, row)):
            if row[metric] is None:
                continue
            better = min if metric in falling else max
            curve = curves.setdefault((row["model"], metric), Curve([], [], [], better))
            curve.rounds.append(row["round"])
            curve.values.append(row[metric])
            # A kill may leave a round in one of the tables alone.
            curve.costs.append(costs.get(row["round"], Cost(0, 0)))
    return curves
