"""What every simulator reads: one folder with data, split, batch orders and first weights; torch alone.

`job_files.py` writes it. Each simulator's script takes the folder as its argument, prints `round N/ROUNDS` as
soon as round N has ended, and leaves the last model's figures in a file.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import peer_models
import torch
from torch import Tensor, nn

CLASSES = 10


@dataclass(frozen=True)
class Job:
    """A workload on disk.

    Attributes:
        folder: where it lies.
        model: a class of `peer_models`.
        shape: of a sample.
        rounds, epochs, batch_size: FedAvg's; all clients take part in each round.
        lr, momentum: of each client's SGD.
        seed: of the batch orders.
        images, labels: of all clients, [n, ...] float32 and [n] int64.
        test_images, test_labels: likewise.
        partition: [clients, samples], which samples each client has.
        orders: [rounds, clients, epochs, samples], places in a client's own samples.
    """

    folder: Path
    model: str
    shape: tuple[int, ...]
    rounds: int
    epochs: int
    batch_size: int
    lr: float
    momentum: float
    seed: int
    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    partition: np.ndarray
    orders: np.ndarray

    def module(self) -> nn.Module:
        """The model with the first weights."""
        module: nn.Module = getattr(peer_models, self.model)(self.shape, CLASSES)
        with np.load(self.folder / "start.npz") as start:
            module.load_state_dict({name: torch.from_numpy(start[name]) for name in start.files})
        return module

    def own(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's samples and labels."""
        indices = torch.from_numpy(self.partition[client])
        return self.images[indices], self.labels[indices]

    def end(self, module: nn.Module, name: str) -> None:
        """Write down the last model's figures on the test samples, as NAME.json in the folder."""
        module.eval()
        with torch.no_grad():
            logits = torch.cat([module(batch) for batch in self.test_images.split(256)])
        figures = {
            "loss": nn.functional.cross_entropy(logits, self.test_labels).item(),
            "accuracy": (logits.argmax(1) == self.test_labels).double().mean().item(),
        }
        (self.folder / f"{name}.json").write_text(json.dumps(figures))

    def say(self, finished: int) -> None:
        """Print that a round has ended, at once."""
        sys.stdout.write(f"round {finished}/{self.rounds}\n")
        sys.stdout.flush()


@cache
def read(folder: str) -> Job:
    """The workload in a folder; its arrays are mapped, so that processes share the pages."""
    torch.set_num_threads(1)
    path = Path(folder)
    described = json.loads((path / "job.json").read_text())
    # Copy on write: torch wants writable memory, and nobody writes.
    arrays = {
        name: np.load(path / f"{name}.npy", mmap_mode="c")
        for name in ("images", "labels", "test_images", "test_labels", "partition", "orders")
    }
    tensors = {name: torch.from_numpy(arrays.pop(name)) for name in tuple(arrays)[:4]}
    described["shape"] = tuple(described["shape"])
    return Job(folder=path, **described, **tensors, **arrays)
