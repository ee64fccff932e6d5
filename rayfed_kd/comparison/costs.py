"""What runs cost: bytes, seconds and epsilon, by round and in all, and the axes of pictures over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute

from rayfed_kd.results.tables import read_table

MIB = 2.0**20
Direction = Literal["up", "down"]
# Kinds in the table `messages` that are no part of the totals, as the ledger names them.
NOT_COUNTED = ("metadata", "simulation")

AxisName = Literal["bytes", "bytes_up", "bytes_down", "epsilon", "local_epsilon", "sim_s", "wall_s"]


@dataclass(frozen=True)
class Axis:
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
        raw_bytes_up, raw_bytes_down: what its parts would have taken without a codec.
        privacy: the last row of its table `privacy`; None without `privacy`.
    """

    cost: Cost
    raw_bytes_up: int
    raw_bytes_down: int
    privacy: Mapping[str, Any] | None = None

    @property
    def raw_bytes(self) -> int:
        """Both directions, without a codec."""
        return self.raw_bytes_up + self.raw_bytes_down


def read_totals(folder: Path) -> RunTotals:
    """Read what a run cost in all.

    Args:
        folder: a finished run's.
    """
    rounds, privacy, messages = (
        read_table(folder / "tables", name) for name in ("rounds", "privacy", "messages")
    )
    costs, spent = costs_by_round(rounds.to_pylist(), privacy.to_pylist()), privacy.to_pylist()
    raw = _raw_bytes(messages)
    return RunTotals(costs[max(costs)], raw["up"], raw["down"], spent[-1] if spent else None)


def _raw_bytes(messages: pa.Table) -> dict[str, int]:
    """Bytes without a codec by direction, of the kinds that count."""
    counted = messages.filter(
        pa.compute.invert(pa.compute.is_in(messages["kind"], value_set=pa.array(NOT_COUNTED)))
    )
    sums = counted.group_by("direction").aggregate([("raw_bytes", "sum")]).to_pylist()
    return {"up": 0, "down": 0} | {row["direction"]: row["raw_bytes_sum"] for row in sums}
