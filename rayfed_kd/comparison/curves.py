"""Curves of a comparison's runs, read from the tables that each run left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rayfed_kd.results.schemas import is_score, smaller_is_better, with_scores
from rayfed_kd.results.summary import METRICS, SMALLER_IS_BETTER
from rayfed_kd.results.tables import read_table

if TYPE_CHECKING:
    from rayfed_kd.comparison.planning import PlannedRun


@dataclass(frozen=True)
class Curve:
    """One run's metric by evaluated round, with what the run had cost until then. All lists are as long.

    Attributes:
        rounds: the evaluated rounds, ascending.
        values: the metric after each of them.
        bytes: all bytes sent until then, both directions.
        sim_s: simulated seconds until then; None without a clock.
        wall_s: real seconds until then; they differ from run to run, so they are not compared.
        better: gives the better one of several values, `max` or `min`.
    """

    rounds: list[int]
    values: list[float]
    bytes: list[int]
    sim_s: list[float | None]
    wall_s: list[float] = field(default_factory=list, compare=False)
    better: Callable[[Iterable[float]], float] = max

    def reaches(self, value: float, target: float) -> bool:
        """Whether a value is at least as good as a target."""
        return self.better((value, target)) == value


class CurveKey(NamedTuple):
    """Which curve: the row's label, the evaluated model, the seed and the metric's column."""

    label: str
    model: str
    seed: int
    metric: str


class _Cost(NamedTuple):
    """What a run had cost after a round."""

    bytes: int
    sim_s: float | None
    wall_s: float


def read_curves(planned: Sequence[PlannedRun]) -> dict[CurveKey, Curve]:
    """Read every metric's curve from the runs' tables.

    Args:
        planned: finished runs.

    Returns: a curve per row, evaluated model, seed and metric that has a value.
    """
    curves: dict[CurveKey, Curve] = {}
    for run in planned:
        costs = _costs_by_round(run)
        tables = {name: read_table(run.folder / "tables", name).to_pylist() for name in ("metrics", "scores")}
        falling = {*SMALLER_IS_BETTER, *smaller_is_better(tables["scores"])}
        for row in with_scores(tables):
            cost = costs[row["round"]]
            for metric in (*METRICS, *filter(is_score, row)):
                if row[metric] is None:
                    continue
                key = CurveKey(run.label, row["model"], run.seed, metric)
                better = min if metric in falling else max
                curve = curves.setdefault(key, Curve([], [], [], [], [], better))
                curve.rounds.append(row["round"])
                curve.values.append(row[metric])
                curve.bytes.append(cost.bytes)
                curve.sim_s.append(cost.sim_s)
                curve.wall_s.append(cost.wall_s)
    return curves


def _costs_by_round(run: PlannedRun) -> Mapping[int, _Cost]:
    costs, total = dict[int, _Cost](), 0
    for row in read_table(run.folder / "tables", "rounds").to_pylist():
        total += row["bytes_up"] + row["bytes_down"]
        costs[row["round"]] = _Cost(total, row["sim_s"], row["wall_s"])
    return costs
