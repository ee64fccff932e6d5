"""One training step on a batch of fixed shape: as it is, and replayed as a CUDA graph.

What is captured is the step of local training, forward, backward and the fused update: the most that a recipe
key for graphs could save. On the CPU there are no graphs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from size import Row, Size, rows_of

from rayfed_kd.models import CLASSIFIERS
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.recipe.registry import load_object
from rayfed_kd.recipe.sections.local_training import OptimizerRecipe
from rayfed_kd.toolbox.losses import cross_entropy
from rayfed_kd.toolbox.optimizers import Optimizer

SGD = OptimizerRecipe(name="sgd", lr=0.01, momentum=0.9)
MODELS = {
    "mlp": ((64,), 20),
    "lenet5": ((1, 28, 28), 64),
    "cnn2": ((3, 32, 32), 64),
    "bottleneck_resnet": ((3, 32, 32), 64),
}


def rows(size: Size) -> Iterator[Row]:
    """A row for each model."""
    size.set_up()
    names = size.of(list(MODELS), ["mlp"])
    yield from rows_of("model", {name: partial(_row, name, size) for name in names})


class _Step:
    """A step on one batch, whose memory stays."""

    def __init__(self, name: str, size: Size) -> None:
        shape, batch = MODELS[name]
        torch.manual_seed(1)
        self.model = FlatModule(load_object(CLASSIFIERS[name], "model")(shape, 10), size.device).train()
        self.optimizer = Optimizer(SGD, self.model)
        self.images = torch.randn(batch, *shape, device=size.device)
        self.labels = torch.randint(0, 10, (batch,), device=size.device)

    def __call__(self) -> None:
        self.optimizer.minimise(cross_entropy(self.model(self.images), self.labels))


def _row(name: str, size: Size) -> Row:
    row: Row = {"batch": MODELS[name][1], "eager_ms": _milliseconds(_Step(name, size), size)}
    if size.device != "cpu":
        replay = _captured(_Step(name, size))
        row["graph_ms"] = _milliseconds(replay, size)
        row["graph_speeds_up"] = row["eager_ms"] / row["graph_ms"]
        row["graph_same_bits"] = _same_bits(name, size)
    return row


def _captured(step: _Step) -> Callable[[], None]:
    """The step as a CUDA graph; it was made three times before, as capturing wants it."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _same_bits(name: str, size: Size) -> bool:
    """Whether five steps by replay end at the bits of five steps more as they are."""
    one, other = _Step(name, size), _Step(name, size)
    replay = _captured(one)
    for _ in range(3):
        other()
    for _ in range(5):
        replay()
        other()
    size.wait()
    return one.model.vector().equal(other.model.vector())


def _milliseconds(step: Callable[[], None], size: Size) -> float:
    times = []
    for _ in range(size.of(60, 6)):
        started = time.perf_counter()
        step()
        size.wait()
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times[size.of(10, 1) :])
