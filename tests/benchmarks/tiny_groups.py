"""From which size of a step on, and with which splits, groups of 25 clients pay: what `by_shape` goes by.

    python tests/benchmarks/tiny_groups.py

FedAvg with 50 clients in one process, one torch thread, MLPs on made-up data; each row with
`local.vectorise=off` and `=25` in turns. Milliseconds of processor time a client and round, the server's part
included, medians over rounds.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cluster.engine.host import Host
from cluster.engine.local import LocalEngine
from cluster.server.simulation import Simulation
from rayfed_kd.experiment.preparation import prepare

sys.path.insert(0, str(Path(__file__).parent))
from workloads import Silent

CLIENTS, CLASSES, ROUNDS, FIRST = 50, 10, 10, 3  # rounds before the third fill caches


@dataclass(frozen=True)
class Row:
    """What is trained.

    Attributes:
        shape: of a sample.
        hidden: units of the MLP.
        batch: B.
        samples: a client's, in the mean.
        epochs: E.
        alpha: of a Dirichlet split; None: all clients have equally many samples.
    """

    shape: tuple[int, int, int]
    hidden: int
    batch: int
    samples: int
    epochs: int = 1
    alpha: float | None = None

    @property
    def products(self) -> int:
        """Of a step's forward pass."""
        rows = min(self.batch, self.samples)
        return rows * self.hidden * (math.prod(self.shape) + CLASSES)

    def recipe(self, vectorise: str | int) -> dict[str, Any]:
        """The row as a recipe."""
        even = {"name": "iid"}
        split = even if self.alpha is None else {"name": "dirichlet", "alpha": self.alpha, "min_size": 2}
        data = {"name": "synthetic", "samples": CLIENTS * self.samples, "test_samples": 10}
        optimizer = {"name": "sgd", "lr": 0.01}
        local = {"epochs": self.epochs, "batch_size": self.batch, "optimizer": optimizer}
        return {
            "method": {"name": "fedavg"},
            "model": {"name": "mlp", "hidden": self.hidden},
            "data": {**data, "classes": CLASSES, "shape": [*self.shape]},
            "partition": {**split, "clients": CLIENTS, "test": "official"},
            "local": {**local, "vectorise": vectorise},
            "rounds": ROUNDS,
            "sampling": {"count": CLIENTS},
            "evaluation": {"every": ROUNDS + 1, "samples": False},
        }


ROWS = [
    Row((1, 8, 8), 64, 20, 20),
    Row((1, 8, 8), 64, 20, 160),
    Row((1, 28, 28), 16, 20, 80),
    Row((1, 28, 28), 26, 25, 100),
    Row((1, 28, 28), 32, 40, 160),
    Row((1, 28, 28), 64, 64, 256),
    Row((1, 28, 28), 200, 32, 128),
    Row((1, 8, 8), 64, 8, 40, 2, alpha=0.5),
    Row((1, 8, 8), 64, 16, 40, 2, alpha=0.5),
    Row((1, 8, 8), 64, 16, 100, 2, alpha=0.5),
    Row((1, 8, 8), 64, 64, 40, 2, alpha=0.1),
]


class Timed:
    """A row trained in one way.

    Args:
        row: what is trained.
        vectorise: as the recipe has it.
    """

    def __init__(self, row: Row, vectorise: str | int) -> None:
        setting = prepare(row.recipe(vectorise)).setting
        self.sizes = setting.partition.sizes
        self._simulation = Simulation(setting, LocalEngine(Host(setting, keep_states=CLIENTS)), Silent())
        self._server = self._simulation.begin().server

    def round_ms(self, round_index: int) -> float:
        """Milliseconds of processor time a client in the next round."""
        began = time.process_time()
        self._server = self._simulation.round(round_index, self._server)
        return 1000 * (time.process_time() - began) / CLIENTS


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    sys.stdout.write("| samples a client | B | hidden units | products a step | off ms | 25 ms | ratio |\n")
    sys.stdout.write("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
    for row in ROWS:
        sides = [Timed(row, vectorise) for vectorise in ("off", 25)]
        times = [[side.round_ms(n) for side in sides] for n in range(1, ROUNDS + 1)][FIRST - 1 :]
        off, grouped = (statistics.median(side) for side in zip(*times, strict=True))
        least, most = sides[0].sizes.min(), sides[0].sizes.max()
        samples = f"{least}" if least == most else f"{least} to {most}"
        size = f"2^{math.log2(row.products):.1f}"
        cells = [samples, row.batch, row.hidden, size, f"{off:.2f}", f"{grouped:.2f}", f"{grouped / off:.2f}"]
        sys.stdout.write(f"| {' | '.join(map(str, cells))} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
