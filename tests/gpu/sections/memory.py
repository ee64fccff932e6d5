"""What a host of each kind holds after two rounds: the data, torch's share, and what its process takes.

Each with the samples on the GPU, and in the machine's memory, from which batches are copied.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import psutil
import torch
from sections.apart import fresh
from size import Row, Size, rows_of
from workloads import Silent

from rayfed_kd.cluster.engine.host import make_host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.experiment.estimating import host_memory
from rayfed_kd.experiment.preparation import prepare

GENERATORS = {
    "fedkf": {"generator": {"name": "dafl_image", "width": 32}},
    "kdia": {"generator": {"epochs": 1, "batches": 100}},
}
TOY = "FedAvg, LeNet-5"
FULL = {
    "FedAvg, 2.2 M parameters": ("fedavg", "cnn2", [3, 32, 32]),
    "FedKF, LeNet-5, width 32": ("fedkf", "lenet5", [1, 28, 28]),
    "KDIA, 100 server steps": ("kdia", "simple_cnn", [3, 32, 32]),
}
WORK = {TOY: ("fedavg", "lenet5", [1, 28, 28]), **FULL}


def rows(size: Size) -> Iterator[Row]:
    """A row for some recipes, each in a process of its own."""
    names = size.of(tuple(FULL), (TOY,))
    kinds = {
        f"{name}, samples {'on the GPU' if where == 'whole' else 'in memory'}": partial(
            fresh, _row, name, where, size
        )
        for name in names
        for where in ("whole", "batches")
    }
    yield from rows_of("host", kinds)


def _recipe(method: str, model: str, shape: list[int]) -> dict[str, object]:
    """Ten clients with 300 images each; four take part in a round."""
    return {
        "method": {"name": method, **GENERATORS.get(method, {})},
        "model": {"name": model},
        "data": {"name": "synthetic", "samples": 3000, "shape": shape, "test_samples": 2000, "signal": 0.5},
        "partition": {"name": "iid", "clients": 10, "test": "official"},
        "local": {"epochs": 2, "batch_size": 64},
        "sampling": {"count": 4},
    }


def _row(name: str, where: str, size: Size) -> Row:
    """In a new process: it holds nothing of another host."""
    on_gpu = size.device != "cpu"
    free_before = torch.cuda.mem_get_info()[0] if on_gpu else 0
    size.set_up()
    setting = prepare(_recipe(*WORK[name]), [f"placement.gpu_data={where}"]).setting
    splits = [setting.dataset.train, *([setting.dataset.test] if setting.dataset.test else [])]
    data = sum(split.images.nbytes + split.labels.nbytes for split in splits)
    host = make_host(setting, device=size.device, keep_states=setting.recipe.partition.clients)
    # The server computes on the CPU: what the GPU holds is the host's.
    run = Simulation(setting, LocalEngine(host), Silent())
    state = run.begin().server
    for index in (1, 2):
        started = time.perf_counter()
        state = run.round(index, state)
    size.wait()
    row: Row = {
        "second_round_s": time.perf_counter() - started,
        "data_mib": data / 2**20,
        "rss_mib": psutil.Process().memory_info().rss / 2**20,
    }
    if on_gpu:
        # What `--estimate` would say of it.
        told = host_memory(torch.cuda.memory_reserved() / 2**20, 0.0)
        row |= {
            "most_allocated_mib": torch.cuda.max_memory_allocated() / 2**20,
            "reserved_mib": torch.cuda.memory_reserved() / 2**20,
            # With CUDA's context, which every process has of its own; right as long as nobody else is there.
            "process_mib": (free_before - torch.cuda.mem_get_info()[0]) / 2**20,
            "estimated_mib": told.needed_mb if told else None,
        }
    return row
