"""rayfed-kd: a simulator for federated knowledge distillation on Ray actors.

    import rayfed_kd

    result = rayfed_kd.run("configs/quickstart.yaml", ["rounds=3"])

Importing this package loads neither torch nor Ray; what needs them loads them when called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayfed_kd.experiment import Result, export, resume, run
    from rayfed_kd.preparation import prepare
    from rayfed_kd.trials import tune

_MODULES = {
    "Result": "experiment",
    "export": "experiment",
    "prepare": "preparation",
    "resume": "experiment",
    "run": "experiment",
    "tune": "trials",
}
__all__ = ["Result", "export", "prepare", "resume", "run", "tune"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"rayfed_kd.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'rayfed_kd' has no attribute {name!r}")
