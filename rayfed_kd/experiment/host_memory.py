"""How large a share of a GPU a host needs, as `--estimate` measures it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from rayfed_kd.cluster.engine.gpu_use import MIB

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
