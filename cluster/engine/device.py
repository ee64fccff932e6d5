"""The device on which a process computes: the CPU, or a GPU set up as the recipe asks for."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from rayfed_kd.data.batches import DeviceData
from rayfed_kd.errors import RecipeError
from rayfed_kd.setting.setting import Setting

DATA = "the data"
AMPERE = (8, 0)  # the first capability with tf32 and bf16; torch imitates bf16 on older ones, slowly


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


def check_precision(precision: str, device: torch.device) -> None:
    """Check that a device computes in a recipe's `local.precision`.

    Args:
        precision: fp32, tf32 or bf16.
        device: where clients' steps are to run.
    Raises: RecipeError if it cannot.
    """
    if device.type != "cuda" and precision == "tf32":
        fault = "tf32 is arithmetic of NVIDIA GPUs, and clients compute on the CPU; expected fp32 or bf16"
    elif device.type != "cuda" or precision == "fp32":  # every GPU does, also one that is not there yet
        return
    else:
        name, (major, minor) = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
        if (major, minor) >= AMPERE:
            return
        fault = (
            f"{precision} needs a GPU of capability {AMPERE[0]}.{AMPERE[1]} or more, and {name} has "
            f"{major}.{minor}; expected fp32"
        )
    raise RecipeError(fault, path="local.precision")


def least_memory(setting: Setting) -> dict[str, int]:
    """Bytes that a host needs for certain, by what for: activations and further models come on top."""
    pool, splits = setting.module_pool(), [setting.dataset.train, setting.dataset.test]
    data = sum(split.images.nbytes + split.labels.nbytes for split in splits if split is not None)
    largest = max(pool.initial_vector(name).nbytes for name in setting.builders)
    return {DATA: data, "the largest model with its gradients": 2 * largest}


def placed_data(setting: Setting, device: torch.device, share: float, actor: str = "client") -> DeviceData:
    """The data for a process, where `placement.gpu_data` has them; one copy for all in this process.

    Args:
        setting: what it is to run.
        device: where.
        share: the part of the device's memory that it may take.
        actor: client or server: whose request an error names.
    Raises: RecipeError if data and model do not fit, with what they need and what there is.
    """
    return setting.device_data(device, lambda: check_room(setting, device, share, actor))


def check_room(setting: Setting, device: torch.device, share: float, actor: str = "client") -> bool:
    """Check that a process fits into its part of a device's memory, before it takes any.

    Args:
        setting, device, share, actor: as in `placed_data`; only a GPU is asked for its memory.
    Returns: whether samples stay in the machine's memory, and are copied batch by batch.
    Raises: RecipeError with what it needs and what there is.
    """
    wanted = setting.recipe.placement.gpu_data
    if device.type != "cuda":
        return wanted == "batches"
    free, total = torch.cuda.mem_get_info(device)
    needed, fault = least_memory(setting), None
    for streamed in {"auto": (False, True), "whole": (False,), "batches": (True,)}[wanted]:
        if streamed:
            needed.pop(DATA)
        fault = room_fault(needed, torch.cuda.get_device_name(device), total, free, share)
        if fault is None:
            return streamed
    raise RecipeError(fault or "", path=f"placement.{actor}.num_gpus")


def room_fault(needed: Mapping[str, int], name: str, total: int, free: int, share: float) -> str | None:
    """Why a host does not fit into its part of a GPU's memory; None if it may.

    Args:
        needed: what for -> bytes.
        name: of the GPU.
        total, free: its bytes, and those that nobody holds.
        share: the part of it that the host may take.
    """
    demand = sum(needed.values())
    if demand <= min(share * total, free):
        return None
    parts = " and ".join(f"{what} ({_mib(size)} MiB)" for what, size in needed.items())
    need = f"and {parts} alone need {_mib(demand)} MiB"
    if demand > share * total:
        least = math.ceil(100 * demand / total) / 100
        way = f"{least:g} or more" if least <= 1 else "a GPU with more memory, or less data"
        return f"{share:g} of {name} are {_mib(share * total)} MiB, {need}; expected {way}"
    return f"other processes left {_mib(free)} of {_mib(total)} MiB of {name}, {need}; expected them to end"


def _mib(size: float) -> str:
    return f"{size / 2**20:,.0f}"


@contextmanager
def tf32_products() -> Iterator[None]:
    """Within, a GPU's convolutions and matrix products of float32 numbers are computed in tf32."""
    with settings_kept():
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
        yield


@contextmanager
def settings_kept() -> Iterator[None]:
    """Within, `gpu` may change how torch computes in this process; afterwards it is as before."""
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, products.allow_tf32, cudnn.benchmark
    deterministic = _deterministic()
    try:
        yield
    finally:
        cudnn.allow_tf32, products.allow_tf32, cudnn.benchmark = before
        # Only where it was changed: torch loads its compiler to set it, which takes one to two seconds.
        if _deterministic() != deterministic:
            torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])


def _deterministic() -> tuple[bool, bool]:
    """Whether torch is told to repeat bit for bit, and whether it only warns where it cannot."""
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warns
