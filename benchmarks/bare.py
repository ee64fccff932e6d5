"""FedAvg in plain PyTorch: processes that share the weights' memory and sum in place.

    python benchmarks/bare.py FOLDER [PROCESSES]

The training loop is that of `tests/benchmarks/bare_loop.py`, which draws batches from rayfed-kd's streams.
This process trains, too: with two processes it starts one.
"""

from __future__ import annotations

import multiprocessing as mp
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests/benchmarks"))

from bare_loop import BareWorker
from job import Job, read
from torch import Tensor

Tensors = dict[str, Tensor]


def clients_part(worker: BareWorker, job: Job, weights: Tensors, own: Tensors, mine: range, n: int) -> None:
    """Trains some clients from `weights` and leaves their weighted sum in `own`.

    Args:
        worker: the module and the loop over batches.
        job: the workload.
        weights: the round's first ones.
        own: where this process sums.
        mine: its clients.
        n: the round, from 1.
    """
    total = job.partition.size
    for place, client in enumerate(mine):
        indices = job.partition[client]
        share = len(indices) / total
        for name, tensor in worker.train(weights, client, n, indices).items():
            if place:
                own[name].add_(tensor, alpha=share)
            else:
                own[name].copy_(tensor).mul_(share)


def _worker(job: Job) -> BareWorker:
    # The data are float32: nothing is normalised.
    nothing = [0.0], [1.0]
    return BareWorker(job.module(), job, job.images.numpy(), job.labels.numpy(), nothing, job.seed)


def _other(folder: str, weights: Tensors, own: Tensors, mine: range, barrier: Any) -> None:
    job = read(folder)
    worker = _worker(job)
    for n in range(1, job.rounds + 1):
        barrier.wait()
        clients_part(worker, job, weights, own, mine, n)
        barrier.wait()


def run(folder: str, processes: int = 2) -> None:
    """All rounds.

    Args:
        folder: of the workload.
        processes: that share the clients, this one among them.
    """
    job = read(folder)
    module = job.module()
    weights = {name: tensor.share_memory_() for name, tensor in module.state_dict().items()}
    sums = [
        {name: tensor.clone().share_memory_() for name, tensor in weights.items()} for _ in range(processes)
    ]
    parts = [range(first, len(job.partition), processes) for first in range(processes)]
    context = mp.get_context("spawn")
    barrier = context.Barrier(processes)
    others = [
        context.Process(target=_other, args=(folder, weights, own, mine, barrier), daemon=True)
        for own, mine in zip(sums[1:], parts[1:], strict=True)
    ]
    for other in others:
        other.start()
    worker = _worker(job)
    for n in range(1, job.rounds + 1):
        barrier.wait()
        clients_part(worker, job, weights, sums[0], parts[0], n)
        barrier.wait()
        for name, tensor in weights.items():
            tensor.copy_(sums[0][name])
            for own in sums[1:]:
                tensor.add_(own[name])
        if n == job.rounds:
            job.end(module, "bare")
        job.say(n)
    for other in others:
        other.join()


if __name__ == "__main__":
    run(sys.argv[1], *map(int, sys.argv[2:]))
