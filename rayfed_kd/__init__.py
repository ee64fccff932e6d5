"""rayfed-kd: a simulator for federated knowledge distillation on Ray actors.

    import rayfed_kd

    result = rayfed_kd.run("configs/quickstart.yaml", ["rounds=3"])

Importing this package loads neither torch nor Ray; what needs them loads them when called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayfed_kd.experiment import Result, export, prepare, resume, run, tune

__all__ = ["Result", "export", "prepare", "resume", "run", "tune"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from rayfed_kd import experiment

        return getattr(experiment, name)
    raise AttributeError(f"module 'rayfed_kd' has no attribute {name!r}")
