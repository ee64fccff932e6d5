"""What would fail on this machine's GPUs: found from the driver's and torch's facts before a run does."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rayfed_kd.errors import shortened

# The oldest Linux driver for each major version of CUDA; every minor version runs on it (NVIDIA, CUDA
# Compatibility, "Minor Version Compatibility").
LEAST_DRIVER = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
# Below this share of a GPU's memory what others hold is the driver's own, or a desktop's.
SMALL_SHARE = 0.1
PRECISION_CAPABILITY = (8, 0)
QUERY = ("index", "name", "driver_version", "compute_cap", "memory.total", "memory.used", "compute_mode")
SMI_S = 20.0  # a driver that hangs must not hang `doctor`


@dataclass(frozen=True)
class Gpu:
    """One GPU, as the driver sees it.

    Attributes:
        index: the driver's number.
        name: its model.
        capability: CUDA's compute capability.
        total_mib, used_mib: memory; used by any process.
        compute_mode: Default, Exclusive_Process or Prohibited.
    """

    index: int
    name: str
    capability: tuple[int, int]
    total_mib: float
    used_mib: float
    compute_mode: str = "Default"

    @property
    def busy(self) -> bool:
        """Whether others hold more than a small share of its memory."""
        return self.used_mib > SMALL_SHARE * self.total_mib


@dataclass(frozen=True)
class GpuFacts:
    """What the driver and torch say.

    Attributes:
        torch: its version.
        cuda: the version of CUDA that torch was built for; None: it is a build without.
        architectures: what torch's kernels were compiled for, as sm_90 or compute_90; empty: unknown.
        available: how many GPUs torch sees.
        driver: the driver's version; empty if nvidia-smi is not there or does not answer.
        gpus: as nvidia-smi lists them.
        smi_fault: what nvidia-smi said instead; empty if it answered, or is not there.
        visible: CUDA_VISIBLE_DEVICES; None if it is not set.
    """

    torch: str
    cuda: str | None
    architectures: Sequence[str] = ()
    available: int = 0
    driver: str = ""
    gpus: Sequence[Gpu] = field(default_factory=tuple)
    smi_fault: str = ""
    visible: str | None = None


def gpu_lines(facts: GpuFacts) -> Iterator[str]:
    """What `doctor` prints: a line for each GPU, then one for each fault."""
    for gpu in facts.gpus:
        capability = "{}.{}".format(*gpu.capability)
        exact = "" if gpu.capability >= PRECISION_CAPABILITY else "; local.precision: fp32 alone"
        yield (
            f"GPU {gpu.index:<10}{gpu.name}, capability {capability}, {gpu.total_mib:,.0f} MiB, of which "
            f"{gpu.used_mib:,.0f} are taken; driver {facts.driver}{exact}"
        )
    for fault in gpu_faults(facts):
        yield f"GPU fault     {fault}"


def gpu_faults(facts: GpuFacts) -> Iterator[str]:
    """What would fail, each with what to do; nothing where there is no GPU."""
    if facts.smi_fault:
        yield (
            f"nvidia-smi fails: {facts.smi_fault}. So the driver does not run; expected `nvidia-smi` to list "
            "the GPUs"
        )
        return
    if not facts.gpus:
        return
    if facts.cuda is None:
        yield (
            f"torch {facts.torch} is a build without CUDA, so everything computes on the CPU; expected one "
            f"with CUDA {newest_cuda(facts.driver) or 'of the driver'} or older, from PyTorch's index"
        )
        return
    fault = driver_fault(facts.driver, facts.cuda)
    if fault is not None:
        yield fault
        return
    if hidden(facts):
        yield (
            f"CUDA_VISIBLE_DEVICES is {facts.visible!r}, and torch sees {facts.available} of "
            f"{len(facts.gpus)} GPUs; expected it unset, or the numbers of the GPUs that a run may use"
        )
    elif facts.available == 0:
        yield (
            "torch sees no GPU, though the driver lists some: `python -c 'import torch; torch.cuda.init()'` "
            "says why; in a container it often was not given the GPUs (--gpus all)"
        )
    for gpu in facts.gpus:
        yield from _faults_of(gpu, facts)


def _faults_of(gpu: Gpu, facts: GpuFacts) -> Iterator[str]:
    where = f"GPU {gpu.index} ({gpu.name})"
    # torch names its architectures only where it sees a GPU.
    if facts.architectures and not has_kernels(gpu.capability, facts.architectures):
        yield (
            f"{where} has capability {gpu.capability[0]}.{gpu.capability[1]}, and torch {facts.torch} has "
            f"kernels for {', '.join(facts.architectures)}; expected another build of torch"
        )
    if gpu.compute_mode == "Prohibited":
        yield f"{where} is in compute mode Prohibited: no process may use it; expected Default"
    elif gpu.compute_mode == "Exclusive_Process":
        yield (
            f"{where} is in compute mode Exclusive_Process: one process at a time, so a server and hosts "
            "cannot share it; expected Default, or placement.client.num_gpus=1 and the server on the CPU"
        )
    if gpu.busy:
        free = 1 - gpu.used_mib / gpu.total_mib
        yield (
            f"{where}: other processes hold {gpu.used_mib:,.0f} of {gpu.total_mib:,.0f} MiB. Hosts count on "
            f"all of it: their shares (num_gpus) together should stay below {free:.2f} until it is free; "
            "`nvidia-smi` lists the processes"
        )


def hidden(facts: GpuFacts) -> bool:
    """Whether CUDA_VISIBLE_DEVICES keeps GPUs from torch."""
    return facts.visible is not None and facts.available < len(facts.gpus)


def driver_fault(driver: str, cuda: str) -> str | None:
    """Why a driver is too old for torch's CUDA; None if it is not, or if either version is unknown.

    Args:
        driver: as 580.65.06.
        cuda: as 13.0.
    """
    least, has = LEAST_DRIVER.get(numbers(cuda)[0]), numbers(driver)
    if least is None or has >= least:
        return None
    older = newest_cuda(driver)
    way = f", or a torch for CUDA {older}" if older else ""
    shown = ".".join(f"{part:02d}" if place == 2 else str(part) for place, part in enumerate(least))
    return f"driver {driver} is too old for torch's CUDA {cuda}; expected {shown} or newer{way}"


def newest_cuda(driver: str) -> int | None:
    """The newest major version of CUDA that a driver runs; None if it runs none that is known here."""
    has = numbers(driver)
    return max((major for major, least in LEAST_DRIVER.items() if has >= least), default=None)


def has_kernels(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Whether code compiled for these architectures runs on a GPU.

    sm_XY runs on capability X.Z with Z of Y or more; compute_XY, which the driver compiles further, on X.Y
    and all that came later; with a letter, as sm_90a, on that capability alone.
    """
    for name in architectures:
        kind, _, version = name.partition("_")
        digits = version.rstrip("af")
        if not digits.isdigit() or len(digits) < 2:
            continue
        major, minor = int(digits[:-1]), int(digits[-1])
        if version.endswith("a"):
            runs = (major, minor) == capability
        elif kind == "compute":
            runs = capability >= (major, minor)
        else:
            runs = major == capability[0] and capability[1] >= minor
        if runs:
            return True
    return False


def numbers(version: str) -> tuple[int, ...]:
    """A version's numbers; (0,) if it begins with none."""
    parts = []
    for part in version.split("."):
        if not part.isdigit():
            break
        parts.append(int(part))
    return tuple(parts) or (0,)


def read_gpus(listed: str) -> tuple[str, list[Gpu]]:
    """The driver's version and the GPUs in what nvidia-smi answers to `QUERY`, one line each.

    Raises: ValueError if a line is in another form.
    """
    driver, gpus = "", []
    for line in filter(str.strip, listed.splitlines()):
        values = [value.strip() for value in line.split(",")]
        # A name may have commas, though none known has.
        index, name, rest = values[0], ", ".join(values[1:-5]), values[-5:]
        driver, capability, total, used, mode = rest
        major, minor = numbers(capability)[:2]
        gpus.append(Gpu(int(index), name, (major, minor), float(total), float(used), mode))
    return driver, gpus


def gathered(environment: Mapping[str, str] = os.environ) -> GpuFacts:
    """This machine's facts. torch is asked before it takes memory of a GPU."""
    import torch

    driver, gpus, fault = _asked_driver()
    return GpuFacts(
        torch=torch.__version__,
        cuda=torch.version.cuda,
        architectures=torch.cuda.get_arch_list(),
        available=torch.cuda.device_count(),
        driver=driver,
        gpus=gpus,
        smi_fault=fault,
        visible=environment.get("CUDA_VISIBLE_DEVICES"),
    )


def _asked_driver() -> tuple[str, list[Gpu], str]:
    if shutil.which("nvidia-smi") is None:
        return "", [], ""
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=SMI_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", [], shortened(str(error), 200)
    if asked.returncode:
        return "", [], shortened(" ".join((asked.stdout + asked.stderr).split()), 200)
    try:
        return *read_gpus(asked.stdout), ""
    except ValueError:
        return "", [], f"an answer in another form: {shortened(asked.stdout, 200)}"
