"""rayfed-kd: a simulator for federated knowledge distillation on Ray actors.

    import rayfed_kd

    result = rayfed_kd.run("quickstart", rounds=3)
    print(result)

Importing this package loads neither torch nor Ray; what needs them loads them when called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayfed_kd.comparison.compare import compare as compare
    from rayfed_kd.experiment.estimating import estimate as estimate
    from rayfed_kd.experiment.exported_model import load as load
    from rayfed_kd.experiment.exporting import export as export
    from rayfed_kd.experiment.preparation import partition as partition
    from rayfed_kd.experiment.preparation import prepare as prepare
    from rayfed_kd.experiment.result import Result as Result
    from rayfed_kd.experiment.running import resume as resume
    from rayfed_kd.experiment.running import run as run
    from rayfed_kd.recipe.roles import data_source as data_source
    from rayfed_kd.recipe.roles import metric as metric
    from rayfed_kd.recipe.roles import model_builder as model_builder
    from rayfed_kd.recipe.roles import partition_scheme as partition_scheme
    from rayfed_kd.reporting.page import report as report
    from rayfed_kd.results.tables import read_table as read_table
    from rayfed_kd.results.telling import Event as Event
    from rayfed_kd.results.trackers.tracker import TrackedRound as TrackedRound
    from rayfed_kd.results.trackers.tracker import TrackedRun as TrackedRun
    from rayfed_kd.results.trackers.tracker import Tracker as Tracker
    from rayfed_kd.tuning.tune import tune as tune

_MODULES = {
    "Event": "results.telling",
    "Result": "experiment.result",
    **dict.fromkeys(("TrackedRound", "TrackedRun", "Tracker"), "results.trackers.tracker"),
    "compare": "comparison.compare",
    "data_source": "recipe.roles",
    "estimate": "experiment.estimating",
    "export": "experiment.exporting",
    "load": "experiment.exported_model",
    "metric": "recipe.roles",
    "model_builder": "recipe.roles",
    "partition": "experiment.preparation",
    "partition_scheme": "recipe.roles",
    "prepare": "experiment.preparation",
    "read_table": "results.tables",
    "report": "reporting.page",
    "resume": "experiment.running",
    "run": "experiment.running",
    "tune": "tuning.tune",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"rayfed_kd.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'rayfed_kd' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What completion offers: the names for users, also before they are loaded."""
    return sorted({*__all__, *globals()})
