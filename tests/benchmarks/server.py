"""How long the server phases of KDIA and DaFKD take, before and after batching, against the client phase.

    python tests/benchmarks/server.py [--steps 40] [--device cuda]

The published recipes' shapes (configs/kdia/cifar10.yaml, configs/dafkd/mnist.yaml) on made-up data, one
torch thread. A few steps of each phase are timed, ways in turn, and scaled to a round: KDIA 2,000 generator
steps on the server and 10 clients x 500 images x 10 epochs; DaFKD 1,280 images from 8 teachers and 40
student steps on the server, and 8 clients x 3,000 images x 20 epochs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import click
import torch
from torch import Tensor, nn

from cluster.engine.host import Host
from cluster.engine.local import LocalEngine
from cluster.server.simulation import Simulation
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.toolbox.ensembles import Ensemble
from rayfed_kd.toolbox.losses import cross_entropy, diversity_loss
from rayfed_kd.toolbox.optimizers import Optimizer

KDIA: dict[str, Any] = {
    "method": {"name": "kdia", "generator": {"epochs": 0}},
    "model": {"name": "simple_cnn"},
    "data": {"name": "synthetic", "samples": 5000, "shape": [3, 32, 32], "test_samples": 10},
    "partition": {"name": "iid", "clients": 10, "test": "official"},
    "local": {"epochs": 1, "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9}},
    "sampling": {"fraction": 1.0},
    "rounds": 1,
    "evaluation": {"every": 1000, "samples": False},
}
DAFKD: dict[str, Any] = {
    "method": {"name": "dafkd", "distill_epochs": 0},
    "model": {"name": "bottleneck_resnet"},
    "data": {"name": "synthetic", "samples": 512, "shape": [1, 28, 28], "test_samples": 10},
    "partition": {"name": "iid", "clients": 8, "test": "official"},
    "local": {"epochs": 1, "batch_size": 32, "optimizer": {"name": "adam", "lr": 0.001}},
    "sampling": {"fraction": 1.0},
    "rounds": 1,
    "evaluation": {"every": 1000, "samples": False},
}


class Silent:
    """Nobody writes anything down."""

    def record(self, record: Any) -> None:
        """Forgets it."""
        self.last = record

    def close(self, status: str) -> dict[str, Any]:
        """Nothing to close."""
        return {}


def simulation(recipe: dict[str, Any], device: str) -> Simulation:
    """On the local engine."""
    setting = prepare(recipe).setting
    return Simulation(setting, LocalEngine(Host(setting, device=torch.device(device))), Silent(), device)


def in_turn(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each, taken in turn."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 2):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn >= 2:
                times[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in times.items()}


def step_of(generator: FlatModule, ensemble: Callable[[Tensor], Tensor], device: str) -> Callable[[], None]:
    """One of the server's generator steps."""
    optimizer = Optimizer(prepare(KDIA).setting.method.options.generator.optimizer, generator)

    def step() -> None:
        labels = torch.randint(10, (64,), device=device)
        z = torch.randn(64, 100, device=device)
        maps = generator(z, labels)
        optimizer.minimise(cross_entropy(ensemble(maps), labels) + diversity_loss(z, maps))

    return step


def plain(generator: nn.Module) -> nn.Module:
    """The same generator with torch's own transposed convolutions."""
    for place, layer in enumerate(generator.body):  # type: ignore[arg-type]
        if isinstance(layer, nn.ConvTranspose2d):
            own = nn.ConvTranspose2d(layer.in_channels, layer.out_channels, 2, bias=False)
            generator.body[place] = own  # type: ignore[operator]
    return generator


def kdia(repeats: int, device: str) -> None:
    """Prints KDIA's server phase against its client phase."""
    sim = simulation(KDIA, device)
    ctx, builders = sim._context(1), sim.setting.builders
    model = ctx.frozen_model(ctx.initial_vector())
    vectors = [ctx.initial_vector() + 0.01 * torch.randn(model.num_elements) for _ in range(10)]
    networks = [FlatModule(builders["model"](), device) for _ in vectors]
    for network, vector in zip(networks, vectors, strict=True):
        network.load(vector.to(device))
        network.freeze()
    heads = Ensemble(model, vectors, lambda m, maps: m.from_(6, maps), batched=True)

    def one_by_one(maps: Tensor) -> Tensor:
        return torch.stack([network.from_(6, maps) for network in networks]).mean(0)

    ours = ctx.model(ctx.initial_vector("generator"), "generator")
    torchs = FlatModule(plain(builders["generator"]()), device).train()
    ways = {
        "torch's transposed convolutions, clients in a loop": step_of(torchs, one_by_one, device),
        "clients in a loop": step_of(ours, one_by_one, device),
        "as it is: one matrix product a layer, clients batched": step_of(
            ours, lambda maps: heads(maps).mean(0), device
        ),
    }
    click.echo("KDIA: server, 2,000 generator steps against 10 clients' heads")
    for name, seconds in in_turn(ways, repeats).items():
        click.echo(f"  {name}: {1000 * seconds:.1f} ms a step, {2000 * seconds:.0f} s a round")
    client_phase(sim, 10, 1)


def dafkd(repeats: int, device: str) -> None:
    """Prints DaFKD's server phase against its client phase."""
    sim = simulation(DAFKD, device)
    ctx = sim._context(1)
    model = ctx.frozen_model(ctx.initial_vector())
    vectors = [ctx.initial_vector() for _ in range(8)]
    images = torch.randn(256, 1, 28, 28, device=device)

    def run(ensemble: Ensemble, size: int) -> Callable[[], Any]:
        def predict() -> None:
            with torch.no_grad():
                for part in torch.split(images, size):
                    ensemble(part)

        return predict

    looped, batched = Ensemble(model, vectors, batched=False), Ensemble(model, vectors, batched=True)
    ways = {
        "batches of 32, one program over stacked weights": run(batched, 32),
        "batches of 256, clients in a loop": run(looped, 256),
        "as it is: batches of 32, clients in a loop": run(looped, 32),
    }
    click.echo("DaFKD: server, predictions of 8 teachers on 1,280 images")
    for name, seconds in in_turn(ways, max(2, repeats // 10)).items():
        click.echo(f"  {name}: {1280 / 256 * seconds:.1f} s a round")
    student = ctx.model(ctx.initial_vector())
    adam = Optimizer(sim.setting.recipe.local.optimizer, student)
    labels = torch.randint(10, (32,), device=device)
    (seconds,) = in_turn(
        {"student": lambda: adam.minimise(cross_entropy(student(images[:32]), labels))}, repeats // 4
    ).values()
    click.echo(f"  the student's 40 steps: {40 * seconds:.1f} s a round")
    client_phase(sim, 20, 3000 * 8 / 512)


def client_phase(sim: Simulation, epochs: int, times: float) -> None:
    """One epoch of every client, scaled to the recipe's epochs and images."""
    started = time.perf_counter()
    sim.round(1, sim.begin().server)
    seconds = (time.perf_counter() - started) * epochs * times
    click.echo(f"  client phase, one core: {seconds:.0f} s a round")


def main(arguments: Sequence[str]) -> None:
    """Both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    kdia(chosen.steps, chosen.device)
    dafkd(chosen.steps, chosen.device)


if __name__ == "__main__":
    main(sys.argv[1:])
