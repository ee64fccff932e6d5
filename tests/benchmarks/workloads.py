"""Two FedAvg workloads of random data, and their rounds in one process; without Ray."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.experiment.preparation import prepare


@dataclass(frozen=True)
class Workload:
    """A FedAvg workload of random data, equal clients."""

    name: str
    clients: int
    samples: int
    shape: tuple[int, ...]
    cohort: int
    batch_size: int
    model: str
    rounds: int
    vectorise: str | int = "off"
    epochs: int = 1
    precision: str | None = None

    def recipe(self) -> dict[str, Any]:
        """The workload as a recipe."""
        return {
            "method": {"name": "fedavg"},
            "model": {"name": self.model},
            "data": {
                "name": "synthetic",
                "samples": self.clients * self.samples,
                "test_samples": 10,
                "shape": list(self.shape),
                "signal": 0.0,
            },
            "partition": {"name": "iid", "clients": self.clients, "test": "official"},
            "local": {
                "epochs": self.epochs,
                "batch_size": self.batch_size,
                "vectorise": self.vectorise,
                "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9},
                **({} if self.precision is None else {"precision": self.precision}),
            },
            "rounds": self.rounds,
            "sampling": {"count": self.cohort},
            "evaluation": {"every": self.rounds + 1, "samples": False},
        }


ROUND = Workload("round", 100, 500, (3, 32, 32), 10, 64, "cnn2", 20)
TINY = Workload("tiny", 1000, 20, (64,), 50, 20, "mlp", 30)
SMALL = {"clients": 6, "samples": 20, "cohort": 4, "rounds": 3}  # with which a workload is a toy


class Side(Protocol):
    """What makes rounds of a workload."""

    def round(self, index: int) -> None:
        """One round."""


class Silent:
    """A recorder that writes nothing: the bare loop writes nothing either."""

    def record(self, record: Any) -> None:
        """Nothing."""


class InOneProcess:
    """The simulator's own loop on the local engine; the server computes on the CPU."""

    def __init__(self, work: Workload, device: str = "cpu") -> None:
        share = [] if device == "cpu" else ["placement.client.num_gpus=1"]  # tf32 is refused without a GPU
        self.prepared = prepare(work.recipe(), share)
        setting = self.prepared.setting
        engine = LocalEngine(Host(setting, device=device, keep_states=work.clients))
        self.simulation = Simulation(setting, engine, Silent())
        self.state = self.simulation.begin().server

    def round(self, index: int) -> None:
        """One round."""
        self.state = self.simulation.round(index, self.state)


def in_turns(sides: Mapping[str, Side], rounds: int, budget_s: float = 3600.0) -> dict[str, list[float]]:
    """Seconds of each side's rounds, which take turns because machines drift.

    Args:
        sides: by name.
        rounds: how many at most.
        budget_s: none begins after so many seconds, but three are made.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    began = time.perf_counter()
    for index in range(1, rounds + 1):
        if index > 3 and time.perf_counter() - began > budget_s:
            break
        for name, side in sides.items():
            started = time.perf_counter()
            side.round(index)
            times[name].append(time.perf_counter() - started)
    return times


def ratios(times: Mapping[str, list[float]], one: str, other: str) -> list[float]:
    """Quotients of rounds that took turns, without the first."""
    return [a / b for a, b in zip(times[one][1:], times[other][1:], strict=True)]


def median_s(times: Mapping[str, list[float]], name: str) -> float:
    """A side's seconds a round, without the first."""
    return statistics.median(times[name][1:])


def against_bare(name: str, ours: Any, bare: Any, work: Workload, budget_s: float) -> dict[str, Any]:
    """A row of `name` beside the bare loop, in turns."""
    times = in_turns({name: ours, "bare": bare}, work.rounds, budget_s)
    return {
        "clients_a_round": work.cohort,
        "rounds": len(times[name]),
        **{f"{side}_ms_a_client": 1000 * median_s(times, side) / work.cohort for side in times},
        "ratio_median_of_pairs": statistics.median(ratios(times, name, "bare")),
        "largest_difference_of_models": (ours.state.weights - bare.vector()).abs().max().item(),
    }
