"""Every random stream of a run, derived from (run seed, what it is for, when, for whom).

No stream is shared, so a draw that one method makes and another does not make shifts nothing:
FedKF with gamma = 0 sees the batches of FedAvg. No stream depends on the process that draws it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive(seed: int, *path: str | int) -> int:
    """A 63-bit seed for the stream named by `path`.

    Args:
        seed: the run's seed.
        path: what the stream is for, e.g. ("noise", client 7, participation 3); order matters.
    """
    name = "\x1f".join(f"{type(step).__name__}:{step}" for step in (seed, *path))
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def numpy_stream(seed: int, *path: str | int) -> np.random.Generator:
    """A numpy generator for the stream named by `path`."""
    return np.random.Generator(np.random.PCG64(derive(seed, *path)))


def torch_stream(seed: int, *path: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator on `device` for the stream named by `path`."""
    import torch

    return torch.Generator(device).manual_seed(derive(seed, *path))


@contextmanager
def global_stream(seed: int, *path: str | int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Let torch's global generators be the stream named by `path` while the block runs.

    Dropout and other modules draw from them. Afterwards they are as before.

    Args:
        seed, path: as in `derive`.
        device: where the block computes.
    """
    import torch

    generators, device = [torch.default_generator], torch.device(device)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    # Not `fork_rng` and `torch.manual_seed`, which take sixty times as long: as long as a small step.
    states = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(derive(seed, *path))
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
