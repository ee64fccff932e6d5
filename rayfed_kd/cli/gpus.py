"""What the driver's own tool and torch say about this machine's GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
import warnings
from collections.abc import Iterator

from rayfed_kd.errors import shortened

QUERY = "index,name,compute_cap,memory.total,memory.used,compute_mode,driver_version"
EXACT_FROM = (8, 0)  # the least compute capability that has tf32 and bf16
SMI_S = 20.0  # a driver that hangs must not hang `doctor`
LONGEST = 400  # letters of what they say


def gpu_lines() -> Iterator[str]:
    """What `doctor` prints: a line for each GPU, then what the driver or torch complains of."""
    listed, fault = _ask_driver()
    for values in listed:
        index, name, capability, total, used, mode, driver = values
        major, minor = (int(part) for part in capability.split("."))
        alone = "" if (major, minor) >= EXACT_FROM else "; local.precision: fp32 alone"
        shared = "" if mode == "Default" else f"; compute mode {mode}: a server and hosts cannot share it"
        yield (
            f"GPU {index:<10}{name}, capability {capability}, {total} MiB, of which {used} are taken; driver "
            f"{driver}{alone}{shared}"
        )
    # The driver first: torch takes memory of each GPU when it begins with them.
    if fault is None and listed:
        fault = _ask_torch(len(listed))
    if fault is not None:
        yield f"GPU fault     {shortened(' '.join(fault.split()), LONGEST)}"


def _ask_driver() -> tuple[list[list[str]], str | None]:
    """The values of `QUERY` for each GPU, and why there are none; nothing of both without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return [], None
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=SMI_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"nvidia-smi fails: {error}"
    listed = [[value.strip() for value in line.split(",")] for line in asked.stdout.splitlines() if line]
    if asked.returncode or any(len(values) != QUERY.count(",") + 1 for values in listed):
        return [], f"nvidia-smi fails: {asked.stdout} {asked.stderr}"
    return listed, None


def _ask_torch(gpus: int) -> str | None:
    """What torch says when it begins with the GPUs; None if it sees all of them and says nothing."""
    import torch

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
            for index in range(torch.cuda.device_count()):
                torch.cuda.get_device_properties(index)
        except (RuntimeError, AssertionError) as error:  # an old driver, a hidden GPU; a torch without CUDA
            return f"torch {torch.__version__}: {error}"
    if said:
        return f"torch {torch.__version__}: {said[0].message}"
    seen, visible = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if seen == gpus else f"torch sees {seen} of {gpus} GPUs: CUDA_VISIBLE_DEVICES is {visible!r}"
