"""What `rayfed-kd doctor` prints: versions, torch, GPUs, torchvision, data, the machines that Ray sees."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from rayfed_kd.errors import DataError, RecipeError
from rayfed_kd.results.folder import environment


def report_lines(address: str | None) -> Iterator[str]:
    """The report, line by line; what takes long comes last.

    Args:
        address: HOST:PORT of a Ray cluster; None: RAY_ADDRESS, else a private Ray is started.
    """
    facts = environment("none")
    yield f"python        {platform.python_version()} on {facts['system']}"
    yield f"packages      {', '.join(f'{name} {version}' for name, version in facts['packages'].items())}"
    yield from _torch_lines()
    yield from _data_lines()
    yield from _ray_lines(address or os.environ.get("RAY_ADDRESS"))


def _torch_lines() -> Iterator[str]:
    import torch

    from rayfed_kd.cli.gpus import gpu_lines
    from rayfed_kd.recipe.torchvision_import import torchvision_state

    driver = list(gpu_lines())  # first: from the next line on this process itself holds memory of each GPU
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    kernels = torch.backends.cpu.get_cpu_capability()
    yield f"torch sees    {os.cpu_count()} cores ({kernels}), GPUs: {', '.join(gpus) or 'none'}"
    yield from driver
    yield f"torchvision   {torchvision_state()}"


def _data_lines() -> Iterator[str]:
    from rayfed_kd.data import OWN_FILES, SOURCES
    from rayfed_kd.data.loading import find_source

    folder = Path(os.environ.get("RAYFED_KD_DATA", "data"))
    yield f"data folder   {folder.resolve()}"
    for name in (source for source in SOURCES if source not in OWN_FILES):
        try:
            source = find_source(name, None, {})
            yield f"  {name:<16}found, {len(source.files)} file(s)"
        except (DataError, RecipeError) as error:
            where = str(error).partition(":")[2].strip()
            yield f"  {name:<16}not found; {where or error}"


def _ray_lines(address: str | None) -> Iterator[str]:
    from rayfed_kd.experiment.running import ray_machines

    machines = ray_machines(address)
    # With one machine there is no network to measure: the object is read where it was put.
    out = "out of another's" if len(machines) > 1 else "out of it"
    for index, machine in enumerate(machines):
        node = machine.node
        # On a private Ray the server's share comes on top of the machine's cores.
        share = "" if address else " (one for the server, which sleeps while clients train)"
        yield (
            f"ray machine {index}  {machine.machine} at {machine.address}: {node.cpus:g} CPU{share}, "
            f"{node.gpus:g} GPU, {node.memory_bytes / 2**30:.1f} GiB{node.own}"
        )
        gpus, code = ", ".join(machine.gpus) or "none", machine.difference or "as here"
        yield f"  GPUs of {index}     {gpus}; code: {code}"
        yield (
            f"  store of {index}    64 MiB into its object store {machine.put_mb_s:,.0f} MB/s, "
            f"{out} {machine.get_mb_s:,.0f} MB/s"
        )
