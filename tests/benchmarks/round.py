"""Rounds on Ray against a bare PyTorch loop that makes the same steps on the same batches.

    python tests/benchmarks/round.py              # workload 1: compute-bound, 2.2 M parameters
    python tests/benchmarks/round.py --tiny       # workload 2: overhead-bound, milliseconds per client task

Two hosts on Ray and two plain processes take turns round by round (A B A B ...), because machines drift:
the ratio is a result, a time alone is not. One torch thread per process. Printed, never asserted; only
that both sides end at the same model is checked.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import threading
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rayfed_kd.cluster.ray_backend import private_ray  # noqa: F401  before Ray

# isort: split
import psutil
import ray
import torch

from rayfed_kd.cluster.ray_backend.client_actor import ClientActor
from rayfed_kd.cluster.ray_backend.engine import RayEngine
from rayfed_kd.cluster.ray_backend.placement import Plan
from rayfed_kd.cluster.ray_backend.session import RaySession
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.recipe.sections.placement import ResourceRecipe

sys.path.insert(0, str(Path(__file__).parent))
from bare_loop import Bare
from workloads import ROUND, TINY, Silent, Workload, in_turns, median_s, ratios

WORKERS = 2


class OnRay:
    """Side A: the simulator's own loop, hosts as Ray actors.

    Args:
        work: the workload.
        hosts: how many.
        num_gpus: each host's share of a GPU.
    """

    def __init__(self, work: Workload, hosts: int = WORKERS, num_gpus: float = 0.0) -> None:
        self.prepared = prepare(work.recipe())
        self._session = RaySession(self.prepared.recipe, None)
        self._session.__enter__().ready()
        plan = Plan(hosts, False, 1, ResourceRecipe(num_gpus=num_gpus), ResourceRecipe())
        shared = ray.put(self.prepared.blueprint)
        actor = ray.remote(ClientActor).options(num_cpus=1, num_gpus=num_gpus)
        self._actors = actors = [actor.remote() for _ in range(hosts)]
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
        """Ends the hosts, and Ray if this side has started it."""
        for actor in self._actors:
            ray.kill(actor)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._session.__exit__(None, None, None)


def report(work: Workload) -> Iterator[str]:
    """Runs both sides in turns and tells what was seen."""
    on_ray = OnRay(work)
    bare = Bare(work, on_ray.prepared.setting, on_ray.state.weights, WORKERS)
    times = in_turns({"ray": on_ray, "bare": bare}, work.rounds)
    held = _memory_mb()
    distance = (on_ray.state.weights - bare.vector()).abs().max().item()
    tasks = work.cohort
    ours, theirs = median_s(times, "ray"), median_s(times, "bare")
    pairs = ratios(times, "ray", "bare")
    yield f"workload {work.name}: {work.rounds} rounds in turns, {tasks} clients a round, {WORKERS} processes"
    yield f"ray   {ours:8.4f} s a round (median after the first), {1000 * ours / tasks:.2f} ms a client"
    yield f"bare  {theirs:8.4f} s a round (median after the first), {1000 * theirs / tasks:.2f} ms a client"
    spread = f"{min(pairs):.3f} to {max(pairs):.3f}"
    yield f"ratio {statistics.median(pairs):8.3f}   (median of pairs; {spread})"
    yield f"first {times['ray'][0]:8.4f} s on ray, {times['bare'][0]:.4f} s bare"
    yield f"memory {held:7.0f} MB in the end in all processes of both sides (shared pages counted in each)"
    yield f"both sides end at the same model: largest difference {distance:.1e}"
    bare.close()
    on_ray.close()


def _memory_mb() -> float:
    me = psutil.Process()
    return sum(p.memory_info().rss for p in [me, *me.children(recursive=True)]) / 2**20


def main() -> None:
    """Parses the command line and prints the figures."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="workload 2")
    parser.add_argument("--vectorise", default="off", help="as local.vectorise: off or a number")
    parser.add_argument("--rounds", type=int, help="fewer or more rounds")
    parser.add_argument("--epochs", type=int, default=1, help="local epochs, in both sides")
    asked = parser.parse_args()
    work = TINY if asked.tiny else ROUND
    vectorise = int(asked.vectorise) if asked.vectorise.isdigit() else asked.vectorise
    rounds = asked.rounds or work.rounds
    work = replace(work, rounds=rounds, vectorise=vectorise, epochs=asked.epochs)
    for line in report(work):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
