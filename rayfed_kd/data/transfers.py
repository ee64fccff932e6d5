"""Counts what is copied between the CPU and the device on which a process computes.

A thread has its own count: in a run without Ray, evaluations and pictures have threads beside the clients'
steps.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import torch
from torch import Tensor


class Transfers(NamedTuple):
    """Copies between the CPU and a device, and their sizes.

    Attributes:
        copies_in, bytes_in: from the CPU to the device.
        copies_out, bytes_out: from the device to the CPU.
    """

    copies_in: int = 0
    bytes_in: int = 0
    copies_out: int = 0
    bytes_out: int = 0

    def plus(self, other: Transfers) -> Transfers:
        """The sum of both."""
        return Transfers(*(count + another for count, another in zip(self, other, strict=True)))

    def since(self, earlier: Transfers) -> Transfers:
        """What was copied since an earlier count of the same thread."""
        return Transfers(*(count - another for count, another in zip(self, earlier, strict=True)))


class _Count(threading.local):
    so_far = Transfers()


_COUNT = _Count()


def transfers_so_far() -> Transfers:
    """All that this thread has moved by `moved`; `Transfers.since` gives those of a stretch of it."""
    return _COUNT.so_far


def moved(tensor: Tensor, device: torch.device | str, *, non_blocking: bool = False) -> Tensor:
    """The tensor on a device: itself if it lies there already, else a copy, which is counted.

    With `non_blocking` a copy from pinned memory goes on while this process does.

    Only copies between the CPU and another kind of device are counted.
    """
    source, target = tensor.device.type, torch.device(device).type
    if source != target:
        size = tensor.numel() * tensor.element_size()
        crossing = Transfers(1, size, 0, 0) if source == "cpu" else Transfers(0, 0, 1, size)
        _COUNT.so_far = _COUNT.so_far.plus(crossing)
    return tensor.to(device, non_blocking=non_blocking)
