"""rayfed-kd: a simulator for federated knowledge distillation on Ray actors.

    import rayfed_kd

    result = rayfed_kd.run("configs/quickstart.yaml", ["rounds=3"])

Importing this package loads neither torch nor Ray; what needs them loads them when called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayfed_kd.experiment.exporting import export
    from rayfed_kd.experiment.preparation import prepare
    from rayfed_kd.experiment.result import Result
    from rayfed_kd.experiment.resuming import resume
    from rayfed_kd.experiment.running import run
    from rayfed_kd.recipe.roles import data_source, model_builder, partition_scheme
    from rayfed_kd.tuning.tune import tune

_MODULES = {
    "Result": "experiment.result",
    "data_source": "recipe.roles",
    "export": "experiment.exporting",
    "load": "experiment.exported_model",
    "model_builder": "recipe.roles",
    "partition_scheme": "recipe.roles",
    "prepare": "experiment.preparation",
    "resume": "experiment.resuming",
    "run": "experiment.running",
    "tune": "tuning.tune",
}
__all__ = [
    "Result",
    "data_source",
    "export",
    "model_builder",
    "partition_scheme",
    "prepare",
    "resume",
    "run",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"rayfed_kd.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'rayfed_kd' has no attribute {name!r}")
