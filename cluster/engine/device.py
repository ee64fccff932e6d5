"""The device on which a process computes: the CPU, or a GPU set up as the recipe asks for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

LOGICAL_GPUS = "RAYFED_KD_LOGICAL_GPUS"


def is_logical() -> bool:
    """Whether GPUs are only counted and everything computes on the CPU, to try a placement."""
    return os.environ.get(LOGICAL_GPUS) == "1"


def gpu(deterministic: bool) -> torch.device:
    """Set up the first GPU that this process sees.

    Args:
        deterministic: whether it may use only kernels that repeat bit for bit.
    """
    # cuDNN's convolutions use tf32 unless they are told not to: a mantissa of 10 bits where the recipe says
    # fp32, and other bits than those of a GPU without it.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    if deterministic:
        # cuBLAS is deterministic only with a fixed workspace; torch raises an error without the variable.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True)
    return torch.device("cuda", 0)


@contextmanager
def settings_kept() -> Iterator[None]:
    """Within, `gpu` may change how torch computes in this process; afterwards it is as before."""
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, products.allow_tf32, cudnn.benchmark
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        cudnn.allow_tf32, products.allow_tf32, cudnn.benchmark = before
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
