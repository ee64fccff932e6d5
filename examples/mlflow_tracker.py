"""A tracker of your own, which tells MLflow of a run: `pip install mlflow-skinny alembic sqlalchemy`."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

import rayfed_kd
from rayfed_kd import TrackedRound, TrackedRun, Tracker

WHOLE = "time/wall_s"  # logged after a round's other numbers: it says that the round is whole


class MLflow(Tracker):
    """A run in MLflow, whose steps are rounds; one that is resumed goes on in the same run."""

    def __init__(self, *, uri: str = "sqlite:///mlflow.db", experiment: str = "rayfed-kd") -> None:
        self.uri, self.experiment = uri, experiment

    def start(self, run: TrackedRun) -> int | None:
        self.client, self.folder = MlflowClient(self.uri), run.folder
        known = self.client.get_experiment_by_name(self.experiment)
        place = known.experiment_id if known else self.client.create_experiment(self.experiment)
        if begun := self.client.search_runs([place], f"tags.`rayfed_kd.run` = '{run.id}'"):
            self.id = begun[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
            return max((one.step for one in self.client.get_metric_history(self.id, WHOLE)), default=None)
        tags = {"rayfed_kd.run": run.id, "group": run.group or ""}
        self.id = self.client.create_run(place, run_name=run.name, tags=tags).info.run_id
        for section, value in run.config.items():
            self.client.log_param(self.id, section, json.dumps(value)[:500])
        return None

    def round(self, told: TrackedRound) -> None:
        for name, value in sorted(told.scalars.items(), key=lambda item: item[0] == WHOLE):
            self.client.log_metric(self.id, re.sub(r"[^\w. :/-]", "_", name), value, step=told.round)

    def end(self, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        for path in files:
            place = path.parent.relative_to(self.folder).as_posix()
            self.client.log_artifact(self.id, str(path), None if place == "." else place)
        self.client.set_terminated(self.id, "FINISHED" if "finished" in summary["status"] else "KILLED")


if __name__ == "__main__":  # or: rayfed-kd run quickstart results.trackers='[mlflow_tracker:MLflow]'
    rayfed_kd.run("quickstart", rounds=2, local=True, results={"trackers": ["mlflow_tracker:MLflow"]})
    reader = MlflowClient("sqlite:///mlflow.db")
    (run,) = reader.search_runs([reader.get_experiment_by_name("rayfed-kd").experiment_id])
    print(f"{run.info.status}: accuracy {run.data.metrics['amp/global']:.3f}")
