"""Functions of a module through torch.compile, for `local.compile`, and what that needs of a machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

from rayfed_kd.errors import shortened

# So many programs of one function, for modules, modes and shapes of their own. torch's own bound is 8, behind
# which it computes eagerly without a word: what a process computed before would decide over bits.
PROGRAMS = 1000
OPTIONS = {
    # Dropout draws the numbers of an eager step, from the step's own stream.
    "fallback_random": True,
    # On a GPU no kernel is chosen by a measurement, which another process could end otherwise.
    "deterministic": True,
}
LEAST_CAPABILITY = (7, 0)  # Triton's
COMPILER_S = 60.0


def compiled(function: Callable[..., Tensor], device: torch.device) -> Callable[..., Tensor]:
    """A function that computes the same up to rounding, compiled at its first call with a new shape.

    Args:
        function: a module, a method of one, or a function that is given one.
        device: where it computes.
    """
    # Here, because both take a second to import.
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor

    dynamo.recompile_limit = max(dynamo.recompile_limit, PROGRAMS)
    dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, PROGRAMS)
    dynamo.fail_on_recompile_limit_hit = True
    options: dict[str, str | int | bool | Callable[..., object]] = {
        name: value for name, value in OPTIONS.items() if hasattr(inductor, name)
    }
    if device.type == "cpu":
        # Hosts compile side by side already; a pool of processes would stay beside each of them.
        options["compile_threads"] = 1
    result: Callable[..., Tensor] = torch.compile(function, dynamic=False, options=options)
    return result


def compiler_fault(device: str, capability: tuple[int, int] | None = None) -> str | None:
    """Why torch.compile cannot make programs for a device on this machine; None if it can.

    Args:
        device: cpu or cuda.
        capability: of the GPU; None: unknown.
    """
    if device == "cuda":
        if capability is not None and capability < LEAST_CAPABILITY:
            least, found = (".".join(map(str, version)) for version in (LEAST_CAPABILITY, capability))
            return f"torch.compile needs a GPU of capability {least} or more, and this one has {found}"
        if find_spec("triton") is None:
            return "torch.compile needs the package triton for GPUs, and it is not installed"
        compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or "gcc"
        return _include_fault(compiler, "c", ["Python.h"], [])
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if sys.platform == "darwin":
        return _include_fault(compiler, "c++", ["Python.h"], [])
    return _include_fault(compiler, "c++", ["Python.h", "omp.h"], ["-fopenmp"])


def _include_fault(compiler: str, language: str, headers: list[str], flags: list[str]) -> str | None:
    """Why a compiler does not find what programs of torch.compile include; None if it does."""
    source = "".join(f"#include <{header}>\n" for header in headers)
    folders = dict.fromkeys(sysconfig.get_path(name) for name in ("include", "platinclude"))
    command = [compiler, "-fsyntax-only", *flags, *(f"-I{folder}" for folder in folders), "-x", language, "-"]
    try:
        asked = subprocess.run(
            command, input=source, capture_output=True, text=True, timeout=COMPILER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return (
            f"torch.compile needs a compiler, and {compiler} cannot be run ({shortened(str(error), 100)}): "
            "install g++, or name one by CXX (on a GPU gcc, by CC)"
        )
    if asked.returncode:
        said = next((line for line in asked.stderr.splitlines() if "error" in line), asked.stderr.strip())
        return (
            f"torch.compile needs Python's headers and OpenMP, and {compiler} says: {shortened(said, 200)}. "
            "Install the package python3-dev of this Python, or a complete g++"
        )
    return None
