"""Tells Weights & Biases: offline, into the run's folder, or its server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from rayfed_kd.errors import optional_package
from rayfed_kd.files.whole import read_parquet, write_json
from rayfed_kd.results.trackers.tracker import TrackedRound, TrackedRun, Tracker

Mode = Annotated[
    Literal["offline", "online"],
    Field(description="offline writes to the run's folder, for `wandb sync`; online needs a login"),
]
Project = Annotated[str, Field(min_length=1, description="the project's name")]
Entity = Annotated[str | None, Field(description="user or team; null: wandb's default")]
# Nothing of the machine, of the code, or of what is printed.
QUIET = {"silent": True, "console": "off", "x_save_requirements": False}
QUIET |= dict.fromkeys(
    ("disable_git", "disable_code", "disable_job_creation", "x_disable_stats", "x_disable_meta"), True
)


class WandB(Tracker):
    """A run in Weights & Biases: its steps are rounds."""

    def __init__(
        self, *, mode: Mode = "offline", project: Project = "rayfed-kd", entity: Entity = None
    ) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        with optional_package("results.trackers: Weights & Biases", "wandb"):
            import wandb
            from wandb import init  # noqa: F401  # a folder wandb, as of an earlier run, is no package
        self._wandb: Any = wandb
        self._options = {"mode": mode, "project": project, "entity": entity}

    def start(self, run: TrackedRun) -> int:
        """Begin, or go on with the run of our id; offline files are written anew, as a kill cuts them off."""
        self._folder = run.folder
        if self._options["mode"] == "offline":
            for earlier in run.folder.glob(f"wandb/offline-run-*-{run.id}"):
                shutil.rmtree(earlier)
        names = {"id": run.id, "name": run.name, "group": run.group, "config": dict(run.config)}
        settings = self._wandb.Settings(**QUIET)
        self._run: Any = self._wandb.init(
            **self._options, **names, dir=run.folder, resume="allow", settings=settings
        )
        return int(self._run.starting_step) - 1

    def round(self, told: TrackedRound) -> None:
        """Log a round as one step."""
        wandb, logged = self._wandb, dict[str, Any](told.scalars)
        logged |= {name: wandb.Histogram(list(values)) for name, values in told.histograms.items()}
        logged |= {name: wandb.Image(str(path)) for name, path in told.images.items()}
        for name, path in told.tables.items():
            table = read_parquet(path)
            rows = [list(row.values()) for row in table.to_pylist()]
            logged[f"{name}_values"] = wandb.Table(columns=table.column_names, data=rows)
        self._run.log(logged, step=told.round, commit=True)

    def end(self, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        """Put the summary beside the last values, the files into the run's folder, and close the run."""
        self._run.summary.update(dict(summary))
        for path in files:  # `save` would leave links to files of ours, which may move
            copy = Path(self._run.dir) / "run" / path.relative_to(self._folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
        write_json(Path(self._run.dir) / "run/summary.json", summary)
        self._run.finish(exit_code=int(summary["status"] == "failed"))
