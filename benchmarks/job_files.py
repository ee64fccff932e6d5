"""Writes a workload's folder (`job.py` reads it) with rayfed-kd's split, orders and weights."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.recipe.seeds import numpy_stream

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests/benchmarks"))
from workloads import InOneProcess, Workload

DATA_SEED = 7
TEST_SAMPLES = 1000
CLASSES = 10


@dataclass(frozen=True)
class PeerWorkload(Workload):
    """A workload in which all clients take part in each round.

    Attributes:
        folder: where it is written.
        signal: length of a class's mean per number of a sample, whose noise has length one.
    """

    folder: Path = Path()
    signal: float = 1.0

    def recipe(self) -> dict[str, Any]:
        """The workload as a recipe: the user's own data and model, one evaluation at the end."""
        recipe = super().recipe()
        del recipe["local"]["vectorise"]  # the default, as a user has it
        return {
            **recipe,
            "data": {"name": "npz", "file": str(self.folder / "data.npz")},
            "evaluation": {"every": self.rounds},
            "seed": 1,
        }

    def write(self) -> None:
        """Write everything that the simulators read."""
        self.folder.mkdir(parents=True)
        arrays = made_up(self)
        np.savez(
            self.folder / "data.npz",
            x_train=arrays["images"],
            y_train=arrays["labels"],
            x_test=arrays["test_images"],
            y_test=arrays["test_labels"],
        )
        (self.folder / "recipe.yaml").write_text(yaml.safe_dump(self.recipe()))
        ours = InOneProcess(self)
        setting = ours.prepared.setting
        seed, optimizer = setting.recipe.seed, self.recipe()["local"]["optimizer"]
        flat = FlatModule(setting.builders["model"]())
        flat.load(ours.state.weights)
        np.savez(self.folder / "start.npz", **{n: t.numpy() for n, t in flat.module.state_dict().items()})
        arrays["partition"] = np.stack([setting.partition.train[c] for c in range(self.clients)])
        arrays["orders"] = np.array(
            [
                [
                    [
                        numpy_stream(seed, "batches", client, n, epoch).permutation(self.samples)
                        for epoch in range(self.epochs)
                    ]
                    for client in range(self.clients)
                ]
                for n in range(1, self.rounds + 1)
            ]
        )
        for name, array in arrays.items():
            np.save(self.folder / f"{name}.npy", array)
        described = {
            "model": self.model.partition(":")[2],
            "shape": self.shape,
            "rounds": self.rounds,
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "lr": optimizer["lr"],
            "momentum": optimizer["momentum"],
            "seed": seed,
        }
        (self.folder / "job.json").write_text(json.dumps(described))


def made_up(work: PeerWorkload) -> dict[str, np.ndarray]:
    """Noise around a mean of each class; means of images are coarse, as a convolution sees them."""
    stream = np.random.default_rng(DATA_SEED)
    coarse = (work.shape[0], *(side // 8 for side in work.shape[1:]))
    means = stream.standard_normal((CLASSES, *coarse), np.float32) * work.signal
    for axis in range(2, means.ndim):
        means = means.repeat(8, axis)
    arrays = {}
    for prefix, count in (("", work.clients * work.samples), ("test_", TEST_SAMPLES)):
        labels = stream.integers(0, CLASSES, count)
        noise = stream.standard_normal((count, *work.shape), np.float32)
        arrays[f"{prefix}images"], arrays[f"{prefix}labels"] = means[labels] + noise, labels
    return arrays


def round_work(folder: Path, rounds: int) -> PeerWorkload:
    """Compute-bound: 10 clients x 500 images."""
    model = "peer_models:RoundNet"
    return PeerWorkload(
        "round", 10, 500, (3, 32, 32), 10, 64, model, rounds, folder=folder / "round", signal=0.15
    )


def tiny_work(folder: Path, rounds: int) -> PeerWorkload:
    """Overhead-bound: 50 clients x 20 samples."""
    model = "rayfed_models:tiny_net"
    return PeerWorkload("tiny", 50, 20, (64,), 50, 20, model, rounds, folder=folder / "tiny", signal=1.0)


WORKLOADS = {"round": (round_work, 6), "tiny": (tiny_work, 40)}
