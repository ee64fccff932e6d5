"""Where the milliseconds of a round of tiny clients go when they train in groups, in one process.

    python tests/benchmarks/group.py                 # groups of 25, one epoch of one batch each
    python tests/benchmarks/group.py --epochs 5

The workload of `round.py --tiny`, two groups a round. Medians of 40 rounds, per group; the least in brackets.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rayfed_kd.cluster.engine import summing
from rayfed_kd.cluster.engine.batching import group_training
from rayfed_kd.cluster.engine.batching.batched_steps import BatchedSteps
from rayfed_kd.cluster.engine.batching.stacked_modules import StackedModules
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol.wire import Wire

sys.path.insert(0, str(Path(__file__).parent))
from workloads import TINY, Silent

ROUNDS, WARM, GROUPS = 40, 8, 2
TIMED = [
    (summing, "group_steps"),
    (Host, "_keep"),
    (Wire, "encoded"),
    (group_training, "_train"),
    (group_training, "program_of"),
    (BatchedSteps, "__init__"),
    (BatchedSteps, "run"),
    (BatchedSteps, "_step"),
    (BatchedSteps, "_losses"),
    (StackedModules, "hand_back"),
    (torch.autograd, "grad"),
]


class Meter:
    """Seconds spent in functions since the last `taken`."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = defaultdict(float)

    def watch(self, owner: Any, name: str) -> None:
        """Counts the seconds of `owner.name` from now on."""
        original, key = getattr(owner, name), f"{owner.__name__.rpartition('.')[2]}.{name}"

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._spent[key] += time.perf_counter() - started

        setattr(owner, name, timed)

    def taken(self, whole: float) -> dict[str, float]:
        """Milliseconds by part of a round that took `whole` seconds; counting starts anew."""
        found, self._spent = self._spent, defaultdict(float)
        return {name: 1000 * seconds for name, seconds in _parts(found, whole).items()}


def _parts(spent: Mapping[str, float], whole: float) -> dict[str, float]:
    step, run = spent["BatchedSteps._step"], spent["BatchedSteps.run"]
    group = spent["summing.group_steps"]
    replies = spent["Wire.encoded"] + spent["Host._keep"]
    inside = {
        "forward, batched": spent["BatchedSteps._losses"],
        "backward": spent["autograd.grad"],
        "gathering, update, logs": step - spent["BatchedSteps._losses"] - spent["autograd.grad"],
        "random streams, order of batches": run - step - spent["StackedModules.hand_back"],
        "stacking, handing back": spent["BatchedSteps.__init__"] + spent["StackedModules.hand_back"],
        "comparing programs": spent["group_training.program_of"],
        "steps, contexts, modules, optimisers": group - spent["group_training._train"] - replies,
        "replies and states": replies,
    }
    return {
        "a group": spent["summing.group_steps"],
        **inside,
        "the server's part": whole - spent["summing.group_steps"],
    }


def main() -> None:
    """Runs rounds and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    work = replace(TINY, vectorise=TINY.cohort // GROUPS, epochs=asked.epochs)
    setting = prepare(work.recipe()).setting
    simulation = Simulation(setting, LocalEngine(Host(setting)), Silent())
    state, meter, seen = simulation.begin().server, Meter(), []
    for owner, name in TIMED:
        meter.watch(owner, name)
    for index in range(1, WARM + asked.rounds + 1):
        started = time.perf_counter()
        state = simulation.round(index, state)
        seen.append(meter.taken(time.perf_counter() - started))
    for name in seen[0]:
        column = [row[name] / GROUPS for row in seen[WARM:]]
        sys.stdout.write(f"{name:38s} {statistics.median(column):6.2f} ms  ({min(column):.2f})\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
