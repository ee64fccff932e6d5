"""A comparison's runs: one after another in this process, or several at a time on one Ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rayfed_kd.errors import RunError
from rayfed_kd.experiment.preparation import make_ready, prepare
from rayfed_kd.experiment.result import Event, OnEvent, Result, Tell
from rayfed_kd.experiment.running import run_prepared_here, run_prepared_on_ray
from rayfed_kd.files import empty_folder, locked_folder
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.schema import Recipe

if TYPE_CHECKING:
    from rayfed_kd.comparison.planning import PlannedRun


# Seconds between two lines about a run: several runs write to the same screen.
PROGRESS_S = 60.0


def run_each(
    planned: Sequence[PlannedRun], *, local: bool, address: str | None, jobs: int | None, tell: Tell
) -> None:
    """Run a comparison's runs; each run's folder is renamed when the run is finished.

    Args:
        planned: the runs; one that was cut off goes on from its last checkpoint.
        local: run one after another in this process, without Ray.
        address: of a Ray cluster; None: RAY_ADDRESS, else a private Ray.
        jobs: how many at a time on Ray; None: as many as have room for a client actor each.
        tell: called with a line when a run starts, about once a minute while it runs, and when it ends.

    Raises:
        RecipeError, DataError: a row cannot be run; raised before the first run.
        RunError: a run failed; it names the run.
    """
    first_seeds = {run.label: run for run in planned}  # a row's seeds differ in nothing that can fail
    for run in first_seeds.values():
        with run.naming():
            prepare(run.source, run.overrides)
    if local:
        for run in planned:
            _run_planned(run, tell, run_prepared_here)
        return
    from cluster.ray_backend.session import RaySession, run_together

    def run_on_ray(run: PlannedRun, share: int, stop: threading.Event) -> None:
        _run_planned(run, tell, partial(run_prepared_on_ray, share=share, stop=stop))

    recipe = load_recipe(planned[0].source, planned[0].overrides)
    with RaySession(recipe, address, jobs or len(planned)) as session:
        session.ready()
        run_together([partial(run_on_ray, run) for run in planned], recipe, jobs)


def _progress_teller(tell: Tell) -> OnEvent:
    """A listener to rounds that tells of one every `PROGRESS_S` at most, and never of the last round."""
    from rayfed_kd.results.console import round_line

    last_line_at = time.monotonic()

    def on_event(event: Event) -> None:
        nonlocal last_line_at
        if time.monotonic() - last_line_at >= PROGRESS_S and event["round"] < event["rounds"]:
            last_line_at = time.monotonic()
            tell(round_line(event))

    return on_event


def _run_planned(run: PlannedRun, tell_all: Tell, work: Callable[..., Result]) -> None:
    """Run one run with `work`, which is `run_prepared_here` or `run_prepared_on_ray`."""
    name = f"{run.label}, seed {run.seed}"

    def tell(line: str) -> None:  # several may run at a time: each line names its run
        tell_all(f"{name}: {line}")

    started = time.perf_counter()
    recipe = load_recipe(run.source, [*run.overrides, f"results.folder={run.unfinished_folder}"])
    resumed = _is_resumable(run.unfinished_folder, recipe)
    if not resumed and run.unfinished_folder.exists():  # of another recipe, or cut off before it began
        with locked_folder(run.unfinished_folder, name, "running"):
            empty_folder(run.unfinished_folder)
    tell(f"{'goes on' if resumed else 'starts'} in {run.unfinished_folder}")
    try:
        with run.naming():
            ready, on_event = make_ready(recipe), _progress_teller(tell)
            # restart: without a usable checkpoint the run begins again, as nobody is there to be asked.
            result = work(ready, on_event, resume=resumed, restart=True, tell=tell)
    except RunError as error:
        raise RunError(f"{name}: {error}") from error
    run.unfinished_folder.rename(run.folder)
    seconds = f"{result.summary['wall_s']:.1f} s in rounds"
    if not resumed:  # a resumed run's seconds in rounds are of all its parts, its other seconds are not known
        seconds = f"{time.perf_counter() - started:.1f} s in all, {seconds}"
    tell(f"{_last_accuracies(result)}; {seconds}")


def _is_resumable(folder: Path, recipe: Recipe) -> bool:
    """Whether a run of the same recipe began in the folder and was cut off."""
    config = folder / "config.yaml"
    if not config.is_file():
        return False
    excluded = {"results"}
    return load_recipe(config).model_dump(exclude=excluded) == recipe.model_dump(exclude=excluded)


def _last_accuracies(result: Result) -> str:
    values = [
        f"{model} {metric} {numbers['last'][metric]:.4f}"
        for model, numbers in result.summary["models"].items()
        for metric in ("amp", "server_accuracy")
        if numbers["last"][metric] is not None
    ]
    return ", ".join(values)
