"""What it costs that clients' states leave their host after each step, as they do on Ray.

    python tests/benchmarks/states.py

A client's step on this CPU and one thread, then its state packed and put into Ray's object store: medians of
processor milliseconds. Steps of one local epoch are measured, and a step is taken to last as many times as
long as its recipe has epochs. For a GPU there is arithmetic: the state over PCIe, and the least that the step
can take there, the larger of its arithmetic at the card's peak and of a launch for each operation of torch.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

from cluster.ray_backend import private_ray  # noqa: F401  before Ray

# isort: split
import click
import ray
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from cluster.engine.host import Host, HostResult
from cluster.engine.local import LocalEngine
from cluster.ray_backend.session import RaySession
from cluster.server.simulation import Simulation
from rayfed_kd.experiment.preparation import prepare

sys.path.insert(0, str(Path(__file__).parent))
from workloads import Silent

ROUNDS = 4
PCIE_BYTES_S = 25e9  # of pinned memory, PCIe 4.0 x16
PEAK_FLOPS = 67e12  # an H100's fp32
LAUNCH_S = 5e-6  # torch's own time for one operation
EMNIST = {"name": "synthetic", "samples": 2 * 624, "classes": 26, "shape": [1, 28, 28], "test_samples": 10}
CIFAR = {"name": "synthetic", "samples": 2 * 1000, "classes": 10, "shape": [3, 32, 32], "test_samples": 10}
# Clients and epochs as the papers have them: FedKF's 12,480 letters among 20, FedPer's 50,000 images among
# 50.
EPOCHS = {"fedkf": 10, "fedper": 4}
CASES: dict[str, dict[str, Any]] = {
    f"FedKF, LeNet-5, width {width}": {
        "method": {"name": "fedkf", "generator": {"name": "dafl_image", "width": width, "latent": 100}},
        "model": {"name": "lenet5"},
        "data": EMNIST,
        "local": {"epochs": 1, "batch_size": 64},
    }
    for width in (32, 128)
} | {
    "FedPer, 2.2 M parameters, personal F1 and F2": {
        "method": {"name": "fedper", "personal": ["F1", "F2"]},
        "model": {"name": "cnn2"},
        "data": CIFAR,
        "local": {"epochs": 1, "batch_size": 128},
    }
}
HEADER = """
| | state | a step | packing | putting | share of the step | PCIe | least step on a GPU | most share there |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""


class _Operations(TorchDispatchMode):
    """Counts torch's operations but those that only look at a tensor in another way."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.count += 1
        return func(*args, **(kwargs or {}))


class _Leaving(Host):
    """A host whose states leave after each step, with a clock at each part; the last step is counted."""

    def __init__(self, setting: Any) -> None:
        super().__init__(setting, keep_states=2)
        self.times: list[tuple[float, float, float]] = []
        self.state_bytes, self.flops, self.operations = 0, 0, 0
        self.counting = False

    def step(self, call: Any, ctx: Any = None) -> HostResult:
        """One step."""
        if self.counting:
            with FlopCounterMode(display=False) as flops, _Operations() as operations:
                result = super().step(call, ctx)
            self.flops, self.operations = flops.get_total_flops(), operations.count
            return result
        clock = [time.process_time()]
        result = super().step(call, ctx)
        clock.append(time.process_time())
        # On the CPU packed tensors share their memory, so what is copied is copied as it is put.
        state = result[2].resolve()
        clock.append(time.process_time())
        ray.put({**state})
        clock.append(time.process_time())
        self.state_bytes = sum(array.nbytes for array in state["state"].arrays)
        self.times.append((clock[1] - clock[0], clock[2] - clock[1], clock[3] - clock[2]))
        return result


def measured(case: dict[str, Any]) -> str:
    """A row of the table without its name."""
    others = {
        "partition": {"name": "iid", "clients": 2, "test": "official"},
        "sampling": {"count": 2},
        "rounds": ROUNDS + 2,
        "evaluation": {"every": ROUNDS + 3, "samples": False},
    }
    setting = prepare({**case, **others}).setting
    host = _Leaving(setting)
    simulation = Simulation(setting, LocalEngine(host), Silent())
    server = simulation.begin().server
    for index in range(1, ROUNDS + 2):
        server = simulation.round(index, server)
    host.counting = True
    simulation.round(ROUNDS + 2, server)
    # The first round's clients have no state yet.
    epoch_s, pack_s, put_s = (statistics.median(column) for column in zip(*host.times[2:], strict=True))
    epochs = EPOCHS[case["method"]["name"]]
    step_s, pcie_s = epochs * epoch_s, host.state_bytes / PCIE_BYTES_S
    least_s = epochs * max(host.flops / PEAK_FLOPS, host.operations * LAUNCH_S)
    return (
        f"{host.state_bytes / 2**20:.1f} MiB | {1000 * step_s:,.0f} ms | {1000 * pack_s:.2f} ms | "
        f"{1000 * put_s:.2f} ms | {(pack_s + put_s) / step_s:.2%} | {1000 * pcie_s:.2f} ms | "
        f"{1000 * least_s:.0f} ms | {pcie_s / least_s:.1%}, with putting {(pcie_s + put_s) / least_s:.1%} |"
    )


def main() -> None:
    """All cases."""
    torch.set_num_threads(1)
    recipe = prepare({**next(iter(CASES.values())), "partition": {"name": "iid", "clients": 5}}).recipe
    with RaySession(recipe, None) as session:
        session.ready()
        click.echo(HEADER, nl=False)
        for name, case in CASES.items():
            click.echo(f"| {name} | {measured(case)}")


if __name__ == "__main__":
    main()
