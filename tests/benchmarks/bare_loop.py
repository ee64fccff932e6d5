"""What the benchmark measures against: FedAvg in plain PyTorch, no framework.

The same steps on the same batches as the simulator's run: the batch order comes from the same named
streams, so that the bare loop's model after the last round can be held against the simulator's.
"""

from __future__ import annotations

import multiprocessing as mp
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from rayfed_kd.recipe.seeds import numpy_stream

if TYPE_CHECKING:  # `benchmarks/bare.py` trains with `BareWorker` and pays for torch alone
    from rayfed_kd.setting.setting import Setting

Weights = dict[str, np.ndarray]


def build(work: Any) -> nn.Module:
    """A workload's model: the project's, by its registered name."""
    from rayfed_kd.models import CLASSIFIERS
    from rayfed_kd.recipe.registry import load_object

    model: nn.Module = load_object(CLASSIFIERS[work.model], "model")(work.shape, 10)
    return model


class BareWorker:
    """One process's part of a round: a module, an optimiser afresh per client, a loop over batches."""

    def __init__(
        self,
        model: nn.Module,
        work: Any,
        images: np.ndarray,
        labels: np.ndarray,
        statistics: Any,
        seed: int,
        *,
        device: str = "cpu",
    ) -> None:
        torch.set_num_threads(1)
        self._work, self._seed, self._device = work, seed, device
        self._images, self._labels = torch.from_numpy(images).to(device), torch.from_numpy(labels).to(device)
        self._model = model.to(device)
        self._floats = images.dtype == np.float32
        self._mean, self._std = (
            torch.tensor(values, device=device).view(1, -1, 1, 1) for values in statistics
        )

    def round(
        self, weights: Weights, clients: list[tuple[int, int, np.ndarray]]
    ) -> list[tuple[int, Weights]]:
        """Trains (client, participation, indices) each from `weights`; gives (samples, weights)."""
        # Once a round, as a simulator's broadcast, and not once a client.
        start = {name: torch.from_numpy(value).to(self._device) for name, value in weights.items()}
        replies = []
        for client, participation, indices in clients:
            trained = self.train(start, client, participation, indices)
            weights = {name: tensor.cpu().numpy().copy() for name, tensor in trained.items()}
            replies.append((len(indices), weights))
        return replies

    def train(
        self, start: dict[str, Tensor], client: int, participation: int, indices: np.ndarray
    ) -> dict[str, Tensor]:
        """Trains a client from `start`; gives the module's own tensors, which the next call overwrites."""
        model = self._model
        model.load_state_dict(start)
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for epoch in range(self._work.epochs):
            stream = numpy_stream(self._seed, "batches", client, participation, epoch)
            order = torch.from_numpy(indices[stream.permutation(len(indices))]).to(self._device)
            for batch in order.split(self._work.batch_size):
                images = self._images[batch]
                if not self._floats:
                    images = (images.float() / 255 - self._mean) / self._std
                loss = nn.functional.cross_entropy(model(images), self._labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        trained: dict[str, Tensor] = model.state_dict()
        return trained


def serve(connection: Connection, device: str, work: Any, *arguments: Any) -> None:
    """A worker process's loop; None ends it. Arguments: a `BareWorker`'s after its model."""
    worker = BareWorker(build(work), work, *arguments, device=device)
    connection.send("ready")
    while (job := connection.recv()) is not None:
        connection.send(worker.round(*job))


class Bare:
    """The bare loop's rounds: weights over pipes, an average in numpy.

    Args:
        work: the workload.
        setting: the simulator's, for the data, the partition and the cohorts.
        start: the simulator's first weights, as a vector.
        processes: plain processes that share the clients; 0: this process trains them all.
        device: where they compute.
    """

    def __init__(
        self, work: Any, setting: Setting, start: Tensor, processes: int, device: str = "cpu"
    ) -> None:
        from rayfed_kd.models.flat_module import FlatModule

        self._partition, self._schedule = setting.partition, setting.schedule
        self._clients, self._count = range(setting.recipe.partition.clients), self._schedule.concurrency
        train, seed = setting.dataset.train, setting.recipe.seed
        images, labels = np.array(train.images), np.array(train.labels)
        arguments = (work, images, labels, (setting.dataset.mean, setting.dataset.std), seed)
        self._pipes: list[Any] = []
        self._processes: list[Any] = []
        self._seen: dict[int, int] = {}
        self._here = None if processes else BareWorker(build(work), *arguments, device=device)
        context = mp.get_context("spawn")
        for _ in range(processes):
            mine, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, device, *arguments), daemon=True)
            process.start()
            self._pipes.append(mine)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()
        self._flat = FlatModule(setting.builders["model"]())
        self._flat.load(start)
        self.weights = {n: value.numpy().copy() for n, value in self._flat.module.state_dict().items()}

    def round(self, index: int) -> None:
        """One round."""
        cohort = self._schedule.sample(self._clients, self._count, index)
        for client in cohort:
            self._seen[client] = self._seen.get(client, 0) + 1
        jobs = [(c, self._seen[c], self._partition.train[c]) for c in cohort]
        if self._here is not None:
            replies = self._here.round(self.weights, jobs)
        else:
            for worker, pipe in enumerate(self._pipes):
                pipe.send((self.weights, jobs[worker :: len(self._pipes)]))
            replies = [reply for pipe in self._pipes for reply in pipe.recv()]
        total = sum(count for count, _ in replies)
        self.weights = {
            name: sum(count * weights[name] for count, weights in replies) / total for name in self.weights
        }

    def vector(self) -> Tensor:
        """The model in the simulator's order."""
        self._flat.module.load_state_dict({n: torch.from_numpy(w) for n, w in self.weights.items()})
        return self._flat.vector()

    def close(self) -> None:
        """Ends the processes."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join()
