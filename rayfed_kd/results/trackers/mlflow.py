"""Tells MLflow: a database file beside the runs' folders, or what the options name."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from filelock import FileLock
from pydantic import Field

from rayfed_kd.errors import optional_package
from rayfed_kd.recipe.yaml_documents import yaml_line
from rayfed_kd.results.trackers.tracker import TrackedRound, TrackedRun, Tracker

LOCAL = "sqlite:///"
LONGEST = 500  # characters of a parameter, in all versions
FORBIDDEN = re.compile(r"[^\w. :/-]")  # in a name
LAST = "time/wall_s"  # every round has it; written last, it says that the round is whole
STATUS = {"interrupted": "KILLED", "failed": "FAILED"}
Uri = Annotated[
    str | None,
    Field(
        pattern="^(sqlite:////|https?://)",
        description="sqlite:////data/mlflow.db or http://host:5000; null: mlflow.db beside the run's folder",
    ),
]
Experiment = Annotated[str, Field(min_length=1, description="the experiment's name")]


class MLflow(Tracker):
    """A run in MLflow: parameters are the recipe's keys, steps are rounds, files are artifacts."""

    def __init__(self, *, uri: Uri = None, experiment: Experiment = "rayfed-kd") -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        with optional_package("results.trackers: MLflow", "mlflow"):
            import alembic  # noqa: F401
            import sqlalchemy  # noqa: F401
            from mlflow import MlflowClient, entities
        self._connect, self._entities = MlflowClient, entities
        self._uri, self._experiment = uri, experiment

    def start(self, run: TrackedRun) -> int | None:
        """Create the run, or find the one with our id, which keeps what it has."""
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._folder = run.folder
        uri = self._uri or f"{LOCAL}{run.folder.parent / 'mlflow.db'}"
        local = uri.startswith(LOCAL)
        place = Path(uri.removeprefix(LOCAL)).parent if local else run.folder.parent
        with FileLock(place / ".mlflow.lock"):  # of runs that start together one makes tables and experiment
            self._client: Any = self._connect(uri)
            known = self._client.get_experiment_by_name(self._experiment)
            artifacts = (place / "mlflow-artifacts").as_uri() if local else None
            experiment = (
                known.experiment_id if known else self._client.create_experiment(self._experiment, artifacts)
            )
        begun = self._client.search_runs([experiment], f"tags.`rayfed_kd.run` = '{run.id}'")
        if begun:
            self._id = begun[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return max((one.step for one in self._client.get_metric_history(self._id, LAST)), default=None)
        tags = {"rayfed_kd.run": run.id} | ({"group": run.group} if run.group else {})
        self._id = self._client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
        params = [self._entities.Param(key, yaml_line(value)[:LONGEST]) for key, value in _flat(run.config)]
        self._client.log_batch(self._id, params=params)
        return None

    def round(self, told: TrackedRound) -> None:
        """Log pictures and tables, then the scalars, which say that the round is whole."""
        self._log_files([*told.images.values(), *told.tables.values()])
        self._log_metrics(sorted(told.scalars.items(), key=lambda item: item[0] == LAST), told.round)

    def end(self, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        """Log the files and the summary's numbers, as models.oca.best.amp; then close the run."""
        self._log_files(files)
        self._client.log_dict(self._id, dict(summary), "summary.json")
        numbers = [(key, value) for key, value in _flat(summary) if isinstance(value, int | float)]
        self._log_metrics(numbers, summary["rounds"])
        self._client.set_terminated(self._id, STATUS.get(summary["status"], "FINISHED"))

    def _log_metrics(self, values: Sequence[tuple[str, float]], step: int) -> None:
        now, metric = int(1000 * time.time()), self._entities.Metric
        metrics = [metric(FORBIDDEN.sub("_", name), value, now, step) for name, value in values]
        self._client.log_batch(self._id, metrics)

    def _log_files(self, paths: Sequence[Path]) -> None:
        for path in paths:
            place = path.parent.relative_to(self._folder).as_posix()
            self._client.log_artifact(self._id, str(path), None if place == "." else place)


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Nested values by their keys, as method.gamma."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield FORBIDDEN.sub("_", f"{before}{key}"), value
