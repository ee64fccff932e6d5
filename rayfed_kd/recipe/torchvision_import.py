"""torchvision from the registry beside a CPU-only torch: its import fails, and can be mended.

Its compiled operators need CUDA's torch and do not load; then a fake for two of them is registered for
operators that do not exist. Defining their schemas first lets the import through; nothing here uses them.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

from rayfed_kd.errors import shortened

_DEFINED: list[Any] = []  # a library's schemas vanish when it is collected
# Of builds that do not fit: compiled operators that are not there, libraries with other symbols.
UNUSABLE = (ImportError, RuntimeError, OSError, AttributeError)
REINSTALL = (
    "install torch and torchvision again, both in one command and from one index "
    "(pip install -c constraints.txt --force-reinstall torch torchvision): each torchvision fits one torch "
    "and one CUDA, or none"
)


def import_torchvision() -> Any:
    """The torchvision module, its import mended where only these operators are missing."""
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::" not in str(error) or "does not exist" not in str(error):
            raise
    else:
        return torchvision
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        library.define(  # type: ignore[no-untyped-call]
            operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
    _DEFINED.append(library)
    for name in [name for name in sys.modules if name == "torchvision" or name.startswith("torchvision.")]:
        del sys.modules[name]
    import torchvision

    return torchvision


def torchvision_state() -> str:
    """One line for `rayfed-kd doctor`."""
    try:
        here = import_torchvision().__version__
    except UNUSABLE as error:
        return unusable(error)
    if _DEFINED:
        return (
            f"{here}, built for another torch than {version('torch')}: its compiled operators do not load; "
            f"data sets and models work, nothing else is used. To mend it: {REINSTALL}"
        )
    return f"{here}, works"


def unusable(error: Exception) -> str:
    """Why torchvision cannot be imported, and what to do.

    Args:
        error: one of UNUSABLE, as `import_torchvision` raised it.
    """
    message = shortened(" ".join(str(error).split()), 200)
    if isinstance(error, ModuleNotFoundError) and error.name == "torchvision":
        return "missing: pip install -c constraints.txt torchvision"
    return f"does not load beside torch {version('torch')} ({message}). To mend it: {REINSTALL}"
