"""What the benchmark measures against: FedAvg in plain PyTorch, two processes, no framework.

The same steps on the same batches as the simulator's run: the batch order comes from the same named
streams, so that the bare loop's model after the last round can be held against the simulator's.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import nn

from rayfed_kd.models import CLASSIFIERS
from rayfed_kd.recipe.registry import load_object
from rayfed_kd.seeds import numpy_stream


class BareWorker:
    """One process's half of a round: a module, an optimiser afresh per client, a loop over batches."""

    def __init__(self, work: Any, images: np.ndarray, labels: np.ndarray, statistics: Any, seed: int) -> None:
        torch.set_num_threads(1)
        self._work, self._seed = work, seed
        self._images, self._labels = torch.from_numpy(images), torch.from_numpy(labels)
        self._model: nn.Module = load_object(CLASSIFIERS[work.model], "model")(work.shape, 10)
        self._floats = images.dtype == np.float32
        self._mean, self._std = (torch.tensor(values).view(1, -1, 1, 1) for values in statistics)

    def round(
        self, weights: dict[str, np.ndarray], clients: list[tuple[int, int, np.ndarray]]
    ) -> list[tuple[int, dict[str, np.ndarray]]]:
        """Trains (client, participation, indices) each from `weights`; gives (samples, weights)."""
        return [(len(indices), self._train(weights, c, n, indices)) for c, n, indices in clients]

    def _train(
        self, weights: dict[str, np.ndarray], client: int, participation: int, indices: np.ndarray
    ) -> dict[str, np.ndarray]:
        model = self._model
        model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for epoch in range(self._work.epochs):
            stream = numpy_stream(self._seed, "batches", client, participation, epoch)
            order = stream.permutation(len(indices))
            for batch in torch.from_numpy(indices[order]).split(self._work.batch_size):
                images = self._images[batch]
                if not self._floats:
                    images = (images.float() / 255 - self._mean) / self._std
                loss = nn.functional.cross_entropy(model(images), self._labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}


def serve(
    connection: Connection, work: Any, images: np.ndarray, labels: np.ndarray, statistics: Any, seed: int
) -> None:
    """A worker process's loop; None ends it."""
    worker = BareWorker(work, images, labels, statistics, seed)
    connection.send("ready")
    while (job := connection.recv()) is not None:
        connection.send(worker.round(*job))
