"""What a client's step took of the device on which its host computes: memory, the GPU's time, copies."""

from __future__ import annotations

import math
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


# A process's own part of a GPU beside its tensors: CUDA's context and loaded kernels. What is missing on the
# GPU may be others', too, so no more than this is taken for it.
MOST_OF_A_CONTEXT = 1024.0


@dataclass(frozen=True)
class HostMemory:
    """What a host takes of a GPU, measured.

    Attributes:
        needed_mb: what torch holds for it and the context of its process, in MiB.
        total_mb: the GPU's memory, in MiB.
    """

    needed_mb: float
    total_mb: float

    @property
    def share(self) -> float:
        """The least `num_gpus`, in hundredths, whose part of the GPU has room for a host."""
        return math.ceil(100 * self.needed_mb / self.total_mb) / 100

    def __str__(self) -> str:
        taken = f"a host takes {self.needed_mb:,.0f} of the GPU's {self.total_mb:,.0f} MiB"
        if self.share > 1:
            return f"{taken}, more than there is"
        # Ray fits as many as their shares' sum allows, counted in hundredths.
        hosts = 100 // round(100 * self.share)
        return f"{taken}: placement.client.num_gpus={self.share:g} lets {hosts} share it"


def host_memory(held_mb: float, missing_mb: float) -> HostMemory | None:
    """What a host takes of this process's first GPU; None without one.

    Args:
        held_mb: what torch held for it when it was measured.
        missing_mb: what it did not have then and needs, as data that were left out.
    """
    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info(0)
    context_mb = (total - free - torch.cuda.memory_reserved(0)) / MIB
    own_mb = min(max(context_mb, 0.0), MOST_OF_A_CONTEXT)
    return HostMemory(held_mb + missing_mb + own_mb, total / MIB)


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
