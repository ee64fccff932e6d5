"""Rounds on Ray against a bare PyTorch loop that makes the same steps on the same batches.

    python tests/benchmarks/round.py              # workload 1: compute-bound, 2.2 M parameters
    python tests/benchmarks/round.py --tiny       # workload 2: overhead-bound, milliseconds per client task
    python tests/benchmarks/round.py --tiny --vectorise 25 --idle   # hosts train nothing: Ray and the server
    python tests/benchmarks/round.py --start      # seconds from the command to the first finished round

Two hosts on Ray and two plain processes take turns round by round (A B A B ...), because machines drift:
the ratio is a result, a time alone is not. One torch thread per process. Printed, never asserted; only
that both sides end at the same model is checked.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing as mp
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cluster.ray_backend import private_ray  # noqa: F401  before Ray

# isort: split
import numpy as np
import psutil
import ray
import torch
import yaml

from cluster.ray_backend.client_actor import ClientActor
from cluster.ray_backend.engine import RayEngine
from cluster.ray_backend.packing import PackedCalls
from cluster.ray_backend.placement import Plan
from cluster.ray_backend.session import RaySession
from cluster.server.simulation import Simulation
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.recipe.schema import ResourceRecipe

sys.path.insert(0, str(Path(__file__).parent))
from bare_loop import serve

WORKERS = 2


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
            },
            "rounds": self.rounds,
            "sampling": {"count": self.cohort},
            "evaluation": {"every": self.rounds + 1, "samples": False},
        }


ROUND = Workload("round", 100, 500, (3, 32, 32), 10, 64, "cnn2", 20)
TINY = Workload("tiny", 1000, 20, (64,), 50, 20, "mlp", 30)


class Silent:
    """A recorder that writes nothing: the bare loop writes nothing either."""

    def record(self, record: Any) -> None:
        """Nothing."""

    def close(self, status: str) -> dict[str, Any]:
        """Nothing."""
        return {}


class IdleActor(ClientActor):
    """Trains its first group; from then on that is its answer to every other one."""

    def __init__(self) -> None:
        super().__init__()
        self._answer: Any = None

    @ray.method(num_returns=3)
    def steps(self, packed: PackedCalls) -> Any:
        """A group's steps, of the first group."""
        packed.calls()
        if self._answer is None:
            self._answer = super().steps(packed)
        return self._answer


class OnRay:
    """Side A: the simulator's own loop, hosts as Ray actors."""

    def __init__(self, work: Workload, actor_class: type[ClientActor] = ClientActor) -> None:
        self.prepared = prepare(work.recipe())
        self._session = RaySession(self.prepared.recipe, None)
        self._session.__enter__().ready()
        plan = Plan(WORKERS, False, 1, ResourceRecipe(), ResourceRecipe())
        shared = ray.put(self.prepared.blueprint)
        actor = ray.remote(actor_class).options(num_cpus=1)
        actors = [actor.remote() for _ in range(WORKERS)]
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        setting = self.prepared.setting
        sizes, faults = setting.partition.sizes.tolist(), setting.recipe.faults
        engine = RayEngine(actors, shared, plan, sizes, self._loop, faults=faults)
        self.simulation = Simulation(setting, engine, Silent())
        self.state = self.simulation.begin().server

    def round(self, index: int) -> None:
        """One round."""
        self.state = self.simulation.round(index, self.state)

    def close(self) -> None:
        """Ends Ray."""
        self._session.__exit__(None, None, None)


class Bare:
    """Side B: two plain processes, weights over pipes, an average in torch."""

    def __init__(self, work: Workload, side: OnRay) -> None:
        setting = side.prepared.setting
        self._partition, self._schedule = setting.partition, setting.schedule
        self._clients, self._count = range(setting.recipe.partition.clients), self._schedule.concurrency
        train, seed = setting.dataset.train, setting.recipe.seed
        images, labels = np.array(train.images), np.array(train.labels)
        statistics_ = (setting.dataset.mean, setting.dataset.std)
        context = mp.get_context("spawn")
        self._pipes, self._seen = [], {}
        self._processes = []
        for _ in range(WORKERS):
            mine, theirs = context.Pipe()
            arguments = (theirs, work, images, labels, statistics_, seed)
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            self._pipes.append(mine)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()
        self._flat = FlatModule(setting.builders["model"]())
        self._flat.load(side.state.weights)
        self.weights = {n: value.numpy().copy() for n, value in self._flat.module.state_dict().items()}

    def round(self, index: int) -> None:
        """One round."""
        cohort = self._schedule.sample(self._clients, self._count, index)
        for client in cohort:
            self._seen[client] = self._seen.get(client, 0) + 1
        for worker, pipe in enumerate(self._pipes):
            mine = [(c, self._seen[c], self._partition.train[c]) for c in cohort[worker::WORKERS]]
            pipe.send((self.weights, mine))
        replies = [reply for pipe in self._pipes for reply in pipe.recv()]
        total = sum(count for count, _ in replies)
        self.weights = {
            name: sum(count * weights[name] for count, weights in replies) / total for name in self.weights
        }

    def vector(self) -> torch.Tensor:
        """The model in the simulator's order."""
        self._flat.module.load_state_dict({n: torch.from_numpy(w) for n, w in self.weights.items()})
        return self._flat.vector()

    def close(self) -> None:
        """Ends the processes."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join()


def report(work: Workload, idle: bool) -> Iterator[str]:
    """Runs both sides in turns and tells what was seen."""
    on_ray = OnRay(work, IdleActor if idle else ClientActor)
    bare = Bare(work, on_ray)
    times: dict[str, list[float]] = {"ray": [], "bare": []}
    peak = 0.0
    for index in range(1, work.rounds + 1):
        for name, side in (("ray", on_ray), ("bare", bare)):
            started = time.perf_counter()
            side.round(index)
            times[name].append(time.perf_counter() - started)
        peak = max(peak, _memory_mb())
    distance = (on_ray.state.weights - bare.vector()).abs().max().item()
    tasks = work.cohort
    ours, theirs = (statistics.median(times[name][1:]) for name in ("ray", "bare"))
    ratios = [a / b for a, b in zip(times["ray"][1:], times["bare"][1:], strict=True)]
    yield f"workload {work.name}: {work.rounds} rounds in turns, {tasks} clients a round, {WORKERS} processes"
    yield f"ray   {ours:8.4f} s a round (median after the first), {1000 * ours / tasks:.2f} ms a client"
    yield f"bare  {theirs:8.4f} s a round (median after the first), {1000 * theirs / tasks:.2f} ms a client"
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    yield f"ratio {statistics.median(ratios):8.3f}   (median of pairs; {spread})"
    yield f"first {times['ray'][0]:8.4f} s on ray, {times['bare'][0]:.4f} s bare"
    yield f"memory {peak:7.0f} MB in all processes of both sides together (shared pages counted in each)"
    if not idle:
        yield f"both sides end at the same model: largest difference {distance:.1e}"
    bare.close()
    on_ray.close()


def _memory_mb() -> float:
    me = psutil.Process()
    return sum(p.memory_info().rss for p in [me, *me.children(recursive=True)]) / 2**20


def start_seconds(work: Workload) -> float:
    """Seconds from `rayfed-kd run` to its line about round 1."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        recipe = {**work.recipe(), "rounds": 2, "results": {"folder": f"{folder}/run"}}
        path.write_text(yaml.safe_dump(recipe))
        command = [sys.executable, "-m", "rayfed_kd", "run", str(path)]
        started = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("round 1/"):
                    seconds = time.perf_counter() - started
            process.wait()
    return seconds


def main() -> None:
    """Parses the command line and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="workload 2")
    parser.add_argument("--start", action="store_true", help="time to the first finished round, three times")
    parser.add_argument("--vectorise", default="off", help="as local.vectorise: off, auto or a number")
    parser.add_argument("--rounds", type=int, help="fewer or more rounds")
    parser.add_argument("--epochs", type=int, default=1, help="local epochs, in both sides")
    parser.add_argument(
        "--idle", action="store_true", help="with --vectorise: groups answer without training"
    )
    asked = parser.parse_args()
    if asked.idle and asked.vectorise == "off":
        parser.error("--idle is about groups: expected --vectorise with it")
    work = TINY if asked.tiny else ROUND
    vectorise = int(asked.vectorise) if asked.vectorise.isdigit() else asked.vectorise
    rounds = asked.rounds or work.rounds
    work = replace(work, rounds=rounds, vectorise=vectorise, epochs=asked.epochs)
    lines = report(work, asked.idle)
    if asked.start:
        seconds = [start_seconds(work) for _ in range(3)]
        lines = iter([f"command to first finished round: {', '.join(f'{s:.1f}' for s in seconds)} s"])
    for line in lines:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
