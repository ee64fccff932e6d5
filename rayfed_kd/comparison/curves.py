"""Curves of metrics, and what runs cost: bytes, seconds and epsilon, by round and in all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from rayfed_kd.results.scores import is_score, score_name, with_scores
from rayfed_kd.results.summary import METRICS, SMALLER_IS_BETTER, bytes_by_kind

MIB = 2.0**20
# Kinds in the table `messages` that are no part of the totals, as the ledger names them.
NOT_COUNTED = ("metadata", "simulation")

AxisName = Literal["bytes", "bytes_up", "bytes_down", "epsilon", "local_epsilon", "sim_s", "wall_s"]


class Axis(NamedTuple):
    """What a metric is drawn over.

    Attributes:
        title: the axis' label.
        unit: what a cost is divided by to be shown.
        none: what is said of a row that has no cost of this kind.
    """

    title: str
    unit: float
    none: str


AXES: Mapping[AxisName, Axis] = {
    "bytes": Axis("MiB sent, up and down", MIB, "sends nothing"),
    "bytes_up": Axis("MiB sent up", MIB, "sends nothing up"),
    "bytes_down": Axis("MiB sent down", MIB, "sends nothing down"),
    "epsilon": Axis("epsilon", 1.0, "no finite epsilon"),
    "local_epsilon": Axis("local epsilon", 1.0, "no finite local epsilon"),
    "sim_s": Axis("simulated seconds", 1.0, "no clock"),
    "wall_s": Axis("real seconds", 1.0, "no seconds"),
}


@dataclass(frozen=True)
class Cost:
    """What a run had cost after a round, since its first one.

    Attributes:
        bytes_up, bytes_down: on the wire, from and to clients.
        sim_s: simulated seconds; None without a clock.
        epsilon, local_epsilon: privacy spent until then; None without `privacy`, or where it has no such one.
        wall_s: real seconds; they differ from run to run, so they are not compared.
    """

    bytes_up: int
    bytes_down: int
    sim_s: float | None = None
    epsilon: float | None = None
    local_epsilon: float | None = None
    wall_s: float = field(default=0.0, compare=False)

    @property
    def bytes(self) -> int:
        """Both directions."""
        return self.bytes_up + self.bytes_down

    def along(self, axis: AxisName) -> float | None:
        """The cost in the axis' unit; None if the run has none of this kind."""
        value: float | None = getattr(self, axis)
        return None if value is None else value / AXES[axis].unit


def costs_by_round(
    rounds: Iterable[Mapping[str, Any]], privacy: Iterable[Mapping[str, Any]]
) -> dict[int, Cost]:
    """Round -> what the run had cost after it.

    Args:
        rounds, privacy: rows of these tables, by round.
    """
    spent = {row["round"]: row for row in privacy}
    costs, up, down = dict[int, Cost](), 0, 0
    for row in rounds:
        up, down = up + row["bytes_up"], down + row["bytes_down"]
        epsilons = spent.get(row["round"], {})
        costs[row["round"]] = Cost(
            up, down, row["sim_s"], epsilons.get("epsilon"), epsilons.get("local_epsilon"), row["wall_s"]
        )
    return costs


@dataclass(frozen=True)
class RunTotals:
    """What a whole run cost.

    Attributes:
        cost: after its last round.
        raw: the bytes that its parts would have taken without a codec.
        privacy: the last row of its table `privacy`; None without `privacy`.
    """

    cost: Cost
    raw: Cost
    privacy: Mapping[str, Any] | None = None


def totals_of(tables: Mapping[str, pa.Table]) -> RunTotals:
    """What a run cost in all.

    Args:
        tables: the run's `rounds`, `privacy` and `messages`.
    """
    spent = tables["privacy"].to_pylist()
    costs = costs_by_round(tables["rounds"].to_pylist(), spent)
    by_kind = bytes_by_kind(tables["messages"], "raw_bytes")
    counted = [sums for kind, sums in by_kind.items() if kind not in NOT_COUNTED]
    raw = Cost(*(sum(sums[direction] for sums in counted) for direction in ("up", "down")))
    return RunTotals(costs[max(costs)], raw, spent[-1] if spent else None)


@dataclass(frozen=True)
class Curve:
    """One run's metric by evaluated round, with what the run had cost until then.

    Attributes:
        rounds: the evaluated rounds in which the metric has a finite value, ascending.
        values: the metric after each of them.
        costs: what the run had cost after each of them.
        better: gives the better one of several values, `max` or `min`.
        evaluated: all evaluated rounds; empty: `rounds`.
    """

    rounds: list[int]
    values: list[float]
    costs: list[Cost]
    better: Callable[[Iterable[float]], float] = max
    evaluated: list[int] = field(default_factory=list)

    def last(self, evaluations: int) -> list[float]:
        """The values of the run's last so many evaluations, 0: of all; without one where there is none."""
        last = (self.evaluated or self.rounds)[-evaluations:]  # a slice from -0 has all
        return [value for index, value in zip(self.rounds, self.values, strict=True) if index in last]

    def beside(self, other: Curve, other_lengths: bool) -> Curve:
        """This curve at the rounds in which both runs have a value.

        Args:
            other: the other run's.
            other_lengths: whether runs of other lengths are cut, too; else they stay as they are.
        """
        ours, theirs = self.evaluated or self.rounds, other.evaluated or other.rounds
        if (self.rounds == other.rounds and ours == theirs) or (ours[-1] != theirs[-1] and not other_lengths):
            return self
        both = [index for index in ours if index in theirs]
        rounds = [index for index in self.rounds if index in both and index in other.rounds]
        values, costs = zip(*map(self.at, rounds), strict=True) if rounds else ((), ())
        return Curve(rounds, list(values), list(costs), self.better, both)

    def at(self, index: int) -> tuple[float, Cost]:
        """The value after an evaluated round, and what the run had cost then."""
        place = self.rounds.index(index)
        return self.values[place], self.costs[place]


class CurveKey(NamedTuple):
    """Which curve: the row's label, the evaluated model, the seed and the metric's column."""

    label: str
    model: str
    seed: int
    metric: str


def curves_of(tables: Mapping[str, pa.Table]) -> dict[tuple[str, str], Curve]:
    """The curves of one run.

    Args:
        tables: the run's `rounds`, `privacy`, `metrics` and `scores`.

    Returns: (evaluated model, metric) -> curve, models in the order in which the run's method names them.
    """
    rows = {name: tables[name].to_pylist() for name in ("rounds", "privacy", "metrics", "scores")}
    costs = costs_by_round(rows["rounds"], rows["privacy"])
    falling = {score_name(row) for row in rows["scores"] if row["better"] == "smaller"}
    curves: dict[tuple[str, str], Curve] = {}
    evaluated = defaultdict[str, list[int]](list)
    for row in with_scores(rows):
        evaluated[row["model"]].append(row["round"])
        for metric in (*METRICS, *filter(is_score, row)):
            if row[metric] is None:
                continue
            better = min if metric in (*SMALLER_IS_BETTER, *falling) else max
            empty = Curve([], [], [], better, evaluated[row["model"]])
            curve = curves.setdefault((row["model"], metric), empty)
            curve.rounds.append(row["round"])
            curve.values.append(row[metric])
            # A kill may leave a round in one of the tables alone.
            curve.costs.append(costs.get(row["round"], Cost(0, 0)))
    return curves
