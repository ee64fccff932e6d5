"""Where a FedKF step's time goes, and what a FedKF round costs against FedAvg's.

    python tests/benchmarks/fedkf.py [--width 32] [--upsampling folded] [--precision bf16] [--rounds 5]

LeNet-5 on made-up 1x28x28 images, batches of 64, one torch thread. Parts are timed one by one on the same
batch; rounds of both methods take turns in one process (local engine), same clients and batches. Beside other
load, seconds of the processor say more than those of the clock: `--processor`. `--precision` is of FedKF's
rounds; the parts and FedAvg compute in fp32.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from workloads import Silent

from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.recipe.sections.local_training import OptimizerRecipe
from rayfed_kd.toolbox.losses import (
    activation_loss,
    cross_entropy,
    distillation,
    information_entropy_loss,
    one_hot_loss,
)
from rayfed_kd.toolbox.optimizers import Optimizer

REPEATS = 30


def recipe(method: dict[str, Any], precision: str = "fp32") -> dict[str, Any]:
    """Twenty clients with 240 images each, four a round, five epochs: what README's study runs."""
    return {
        "method": method,
        "data": {"name": "synthetic", "samples": 4800, "shape": [1, 28, 28], "test_samples": 10},
        "partition": {"name": "iid", "clients": 20, "test": "official"},
        "local": {"epochs": 5, "precision": precision},
        "evaluation": {"every": 1000, "samples": False},
    }


def parts(generator_options: dict[str, Any], device: str) -> dict[str, float]:
    """Milliseconds of each part of a FedKF step in fp32, medians."""
    method = {"name": "fedkf", "generator": generator_options}
    shop = prepare(recipe(method)).setting.module_pool(device)
    teacher = shop.lend("model", shop.initial_vector("model")).freeze()
    student = shop.lend("model", shop.initial_vector("model")).train()
    generator = shop.lend("generator", shop.initial_vector("generator")).train()
    adam = Optimizer(OptimizerRecipe(name="adam", lr=0.001), generator)
    sgd = Optimizer(OptimizerRecipe(lr=0.01), student)
    batch = torch.randn(64, 1, 28, 28, device=device)
    labels = torch.randint(0, 10, (64,), device=device)
    times: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = work()
        if device != "cpu":
            torch.cuda.synchronize()
        times.setdefault(name, []).append(1000 * (time.perf_counter() - started))
        return result

    for _ in range(REPEATS):
        noise = torch.randn(64, 100, device=device)
        images: Tensor = timed("generator forward", lambda z=noise: generator(z))
        fixed, seen = images.detach(), images.detach().requires_grad_()
        features = timed("teacher forward", lambda x=seen: teacher.features(x))
        logits = teacher.classify(features)
        loss = information_entropy_loss(logits) + 0.1 * one_hot_loss(logits) + 0.1 * activation_loss(features)
        timed("teacher backward", lambda value=loss: value.backward())
        towards = (images * seen.grad).sum()
        timed("generator backward, Adam step", lambda value=towards: adam.minimise(value))
        answer = logits.detach()
        both = timed(
            "student forward, twice",
            lambda x=fixed, t=answer: cross_entropy(student(batch), labels) + distillation(t, student(x)),
        )
        timed("student backward, twice, SGD step", lambda value=both: sgd.minimise(value))
    return {name: statistics.median(values[3:]) for name, values in times.items()}


def round_seconds(
    generator: dict[str, Any],
    rounds: int,
    device: str,
    precision: str = "fp32",
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float, float]:
    """Medians of FedKF's and FedAvg's round in turns, and of their ratio."""
    sides = []
    for method, used in (
        ({"name": "fedkf", "generator": generator}, precision),
        ({"name": "fedavg"}, "fp32"),
    ):
        setting = prepare(recipe(method, used)).setting
        host = Host(setting, device=device, keep_states=20)
        simulation = Simulation(setting, LocalEngine(host), Silent(), device)
        sides.append([simulation, simulation.begin().server, []])
    for index in range(1, rounds + 2):
        for side in sides:
            started = clock()
            side[1] = side[0].round(index, side[1])
            side[2].append(clock() - started)
    kf, avg = (side[2][1:] for side in sides)
    ratio = statistics.median(a / b for a, b in zip(kf, avg, strict=True))
    return statistics.median(kf), statistics.median(avg), ratio


def main() -> None:
    """Parses the command line and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--upsampling", choices=("plain", "folded"), default="plain")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--processor", action="store_true", help="a round's seconds of the processor")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    clock = time.process_time if asked.processor else time.perf_counter
    generator = {"name": "dafl_image", "width": asked.width, "upsampling": asked.upsampling}
    found = parts(generator, asked.device)
    total = sum(found.values())
    for name, milliseconds in found.items():
        sys.stdout.write(f"{name:<26}{milliseconds:8.2f} ms {100 * milliseconds / total:5.1f} %\n")
    sys.stdout.write(f"{'a step':<26}{total:8.2f} ms\n")
    kf, avg, ratio = round_seconds(generator, asked.rounds, asked.device, asked.precision, clock)
    sys.stdout.write(f"a round: FedKF {kf:.2f} s, FedAvg {avg:.2f} s, ratio {ratio:.1f} (median of pairs)\n")


if __name__ == "__main__":
    main()
