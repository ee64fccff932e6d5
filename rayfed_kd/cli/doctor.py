"""What `rayfed-kd doctor` prints: versions, torch, GPUs, torchvision, data, the machines that Ray sees.

Of GPUs it prints what the driver's own tool and torch say.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

from rayfed_kd.errors import DataError, RecipeError, shortened
from rayfed_kd.results.folder import environment

QUERY = "index,name,compute_cap,memory.total,memory.used,compute_mode,driver_version"
EXACT_FROM = (8, 0)  # the least compute capability that has tf32 and bf16
SMI_S = 20.0  # a driver that hangs must not hang `doctor`
LONGEST = 400  # letters of what they say


Fact = tuple[str, str]  # a name, indented where it belongs to the one above, and what is said of it


def gpu_facts() -> Iterator[Fact]:
    """A fact for each GPU, then what the driver or torch complains of."""
    listed, fault = _ask_driver()
    for index, name, capability, total, used, mode, driver in listed:
        major, minor = (int(part) for part in capability.split("."))
        alone = "" if (major, minor) >= EXACT_FROM else "; local.precision: fp32 alone"
        shared = "" if mode == "Default" else f"; compute mode {mode}: a server and hosts cannot share it"
        text = f"{name}, capability {capability}, {total} MiB, of which {used} are taken"
        yield f"GPU {index}", f"{text}; driver {driver}{alone}{shared}"
    # The driver first: torch takes memory of each GPU when it begins with them.
    if fault is None and listed:
        fault = _ask_torch(len(listed))
    if fault is not None:
        yield "GPU fault", shortened(" ".join(fault.split()), LONGEST)


def _ask_driver() -> tuple[list[list[str]], str | None]:
    """The values of `QUERY` for each GPU, and why there are none; nothing of both without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return [], None
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SMI_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"nvidia-smi fails: {error}"
    listed = [[value.strip() for value in line.split(",")] for line in done.stdout.splitlines() if line]
    if done.returncode or any(len(values) != QUERY.count(",") + 1 for values in listed):
        return [], f"nvidia-smi fails: {done.stdout} {done.stderr}"
    return listed, None


def _ask_torch(gpus: int) -> str | None:
    """What torch says when it begins with the GPUs; None if it sees all of them and says nothing."""
    import torch

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
            for index in range(torch.cuda.device_count()):
                torch.cuda.get_device_properties(index)
        except (RuntimeError, AssertionError) as error:  # an old driver, a hidden GPU; a torch without CUDA
            return f"torch {torch.__version__}: {error}"
    if warned:
        return f"torch {torch.__version__}: {warned[0].message}"
    seen, visible = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if seen == gpus else f"torch sees {seen} of {gpus} GPUs: CUDA_VISIBLE_DEVICES is {visible!r}"


def report(address: str | None) -> Iterator[Fact]:
    """The report, fact by fact; what takes long comes last.

    Args:
        address: HOST:PORT of a Ray cluster; None: RAY_ADDRESS, else a private Ray is started.
    """
    from rayfed_kd.recipe.torchvision_import import torchvision_state

    driver = list(gpu_facts())  # first: from the next line on this process itself holds memory of each GPU
    facts = environment("none")
    yield "python", f"{facts['python']} on {facts['system']}"
    yield "packages", ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    gpus = ", ".join(facts["gpus"]) or "none"
    yield "torch sees", f"{os.cpu_count()} cores ({facts['instruction_set']}), GPUs: {gpus}"
    yield from driver
    yield "torchvision", torchvision_state()
    yield from _data_facts()
    yield from _ray_facts(address or os.environ.get("RAY_ADDRESS"))


def _data_facts() -> Iterator[Fact]:
    from rayfed_kd.data import OWN_FILES, SOURCES
    from rayfed_kd.data.loading import find_source

    folder = Path(os.environ.get("RAYFED_KD_DATA", "data"))
    yield "data folder", str(folder.resolve())
    for name in (source for source in SOURCES if source not in OWN_FILES):
        try:
            source = find_source(name, None, {})
            yield f"  {name}", f"found, {len(source.files)} file(s)"
        except (DataError, RecipeError) as error:
            where = str(error).partition(":")[2].strip()
            yield f"  {name}", f"not found; {where or error}"


def _ray_facts(address: str | None) -> Iterator[Fact]:
    from rayfed_kd.experiment.running import ray_machines

    for index, machine in enumerate(ray_machines(address)):
        node = machine.node
        # On a private Ray the server's share comes on top of the machine's cores.
        share = "" if address else " (one for the server, which sleeps while clients train)"
        has = f"{node.cpus:g} CPU{share}, {node.gpus:g} GPU, {node.memory_bytes / 2**30:.1f} GiB{node.own}"
        yield f"ray machine {index}", f"{machine.machine} at {machine.address}: {has}"
        gpus, code = ", ".join(machine.gpus) or "none", machine.difference or "as here"
        yield f"  GPUs of {index}", f"{gpus}; code: {code}"
