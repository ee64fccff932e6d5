"""What checkpoints cost: seconds and bytes a round, with one after every round and without.

    python tests/benchmarks/checkpoints.py [--rounds 12]

FedAvg, FedAvg under FedBuff and FedKF on made images of MNIST's size, 20 clients, 4 at work, in this process.
Medians; a round and its checkpoint are timed apart, as one follows the other.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import torch

from cluster.engine.host import Host
from cluster.engine.local import LocalEngine
from cluster.server.checkpoints import Checkpointer
from cluster.server.simulation import Simulation
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.recipe.sections.safety import CheckpointRecipe

RECIPE: dict[str, Any] = {
    "model": {"name": "lenet5"},
    "data": {"name": "synthetic", "samples": 6000, "classes": 10, "shape": [1, 28, 28]},
    "partition": {"name": "iid", "clients": 20},
    "local": {"epochs": 1, "batch_size": 64},
    "sampling": {"count": 4},
    "evaluation": {"every": 1000, "samples": False},
    "clock": {"name": "lognormal"},
}
CASES: dict[str, dict[str, Any]] = {
    "FedAvg, sync": {"method": {"name": "fedavg"}},
    "FedAvg, fedbuff": {"method": {"name": "fedavg"}, "schedule": {"name": "fedbuff", "buffer": 4}},
    "FedKF, sync (generator width 32)": {"method": {"name": "fedkf", "generator": {"width": 32}}},
}


class Silent:
    """Records nothing."""

    def record(self, record: Any) -> None:
        """Nothing."""

    def close(self, status: str) -> dict[str, Any]:
        """Nothing."""
        return {}


def measured(case: dict[str, Any], rounds: int) -> tuple[float, float, int]:
    """Median seconds of a round, of a checkpoint, and the last checkpoint's bytes."""
    setting = prepare({**RECIPE, **case, "rounds": rounds + 1}).setting
    with TemporaryDirectory() as folder:
        checkpointer = Checkpointer(Path(folder), CheckpointRecipe(every=1))
        simulation = Simulation(setting, LocalEngine(Host(setting, keep_states=20)), Silent())
        server = simulation.begin().server
        round_s, save_s = [], []
        for index in range(1, rounds + 1):
            started = time.perf_counter()
            server = simulation.round(index, server)
            between = time.perf_counter()
            checkpointer.save(simulation.snapshot(index, server))
            round_s.append(between - started)
            save_s.append(time.perf_counter() - between)
        size = max(path.stat().st_size for path in Path(folder).rglob("*.safetensors"))
    return statistics.median(round_s[1:]), statistics.median(save_s[1:]), size


def main(arguments: Sequence[str]) -> None:
    """All cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rounds", type=int, default=12)
    rounds = parser.parse_args(arguments).rounds
    torch.set_num_threads(1)
    for name, case in CASES.items():
        round_s, save_s, size = measured(case, rounds)
        click.echo(
            f"{name}: a round {round_s:.3f} s without, {round_s + save_s:.3f} s with a checkpoint "
            f"({save_s / round_s:.1%} more), {size / 2**20:.1f} MiB"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
