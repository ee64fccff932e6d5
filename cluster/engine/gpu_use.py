"""What a client's step took of the device on which its host computes: memory, the GPU's time, copies."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from rayfed_kd.data.transfers import Transfers, transfers_so_far

MIB = 2.0**20
# The driver's number is of its last sample period, which is between 1/6 s and 1 s (NVML,
# nvmlUtilization_t): asked again within it, it would give the same number.
SAMPLE_S = 1 / 6


@dataclass(frozen=True)
class GpuUse:
    """A step's use of its host's device.

    Attributes:
        memory_mb: what the host's process holds of the GPU's memory after the step, in MiB; None: torch does
            not count it for this device.
        peak_mb: the most that the process's tensors took during the step, in MiB; None: as above.
        busy: the share of time in which the GPU had work, from 0 to 1, of any process, in the driver's last
            sample period of the step; None: it cannot be had.
        transfers: the step's copies to the device and from it.
    """

    memory_mb: float | None = None
    peak_mb: float | None = None
    busy: float | None = None
    transfers: Transfers = field(default_factory=Transfers)


class GpuWatch:
    """Measures the use of a device, step by step.

    Args:
        device: where the host computes; not a CPU.
        utilisation: gives a GPU's busy percent, as torch does with NVML.
    """

    def __init__(
        self, device: torch.device, utilisation: Callable[[torch.device], float] = torch.cuda.utilization
    ) -> None:
        self._device, self._utilisation = device, utilisation
        self._asked_at, self._busy = -SAMPLE_S, None if device.type != "cuda" else 0.0
        self._before = Transfers()

    def begin(self) -> None:
        """Called before a step, or a group of steps."""
        self._before = transfers_so_far()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def end(self) -> GpuUse:
        """What was used since `begin`."""
        transfers = transfers_so_far().since(self._before)
        if self._device.type != "cuda":
            return GpuUse(transfers=transfers)
        # Reserved: torch keeps what it freed, and no other process can have it. The peak is of what tensors
        # took, which says how small a share of the GPU would do.
        memory = torch.cuda.memory_reserved(self._device) / MIB
        peak = torch.cuda.max_memory_allocated(self._device) / MIB
        return GpuUse(memory, peak, self._busy_share(), transfers)

    def _busy_share(self) -> float | None:
        now = time.monotonic()
        if self._busy is None or now - self._asked_at < SAMPLE_S:
            return self._busy
        self._asked_at = now
        try:
            self._busy = self._utilisation(self._device) / 100
        # Without nvidia-ml-py torch raises ModuleNotFoundError. With it, the driver's errors are of that
        # module, which cannot be named here: a part of a GPU (MIG) has no such number.
        except Exception:
            self._busy = None  # for good: asked at each step, a driver that fails would slow all of them
        return self._busy
