"""A comparison's runs: one after another in this process, or several at a time on one Ray."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rayfed_kd.errors import RunError
from rayfed_kd.experiment.preparation import make_ready, prepare
from rayfed_kd.experiment.result import Event, OnEvent, Result, Tell
from rayfed_kd.experiment.running import _run_local, run_prepared_on_ray
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.schema import Recipe

if TYPE_CHECKING:
    from rayfed_kd.comparison.planning import Planned


PROGRESS_S = 60.0


def run_each(
    planned: Sequence[Planned], *, local: bool, address: str | None, jobs: int | None, tell: Tell
) -> None:
    """Runs a comparison's runs: one after another in this process, or `jobs` at a time on one Ray.

    Args:
        planned: every one's folder is renamed when it is finished.
        local: in this process, without Ray.
        address: of a Ray cluster.
        jobs: how many at a time on Ray; None: as many as have room for a client actor each.
        tell: called with a line when a run starts and ends.
    Raises: RecipeError or DataError before the first run; RunError naming the run that failed.
    """
    rows = {plan.label: plan for plan in planned}  # a row's seeds differ in nothing that can fail
    for plan in rows.values():
        with plan.naming():
            prepare(plan.source, plan.overrides)
    if local:
        for plan in planned:
            _run_planned(plan, tell, _run_local)
        return
    from cluster.ray_backend.session import RaySession, run_together

    def on_ray(plan: Planned, share: int, stop: threading.Event) -> None:
        _run_planned(plan, tell, partial(run_prepared_on_ray, share=share, stop=stop))

    first = load_recipe(planned[0].source, planned[0].overrides)
    with RaySession(first, address, jobs or len(planned)) as session:
        session.ready()
        run_together([partial(on_ray, plan) for plan in planned], first, jobs)


def _now_and_then(tell: Tell) -> OnEvent:
    """Tells where a long run is, once in `PROGRESS_S` at most; of its last round its end tells."""
    from rayfed_kd.results.console import round_line

    told_at = time.monotonic()

    def on_event(event: Event) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= PROGRESS_S and event["round"] < event["rounds"]:
            told_at = time.monotonic()
            tell(round_line(event))

    return on_event


def _run_planned(plan: Planned, tell_all: Tell, work: Callable[..., Result]) -> None:
    """`work` is `_run_local` or `run_prepared_on_ray`."""
    name = f"{plan.label}, seed {plan.seed}"

    def tell(line: str) -> None:  # several may run at a time
        tell_all(f"{name}: {line}")

    started = time.perf_counter()
    recipe = load_recipe(plan.source, [*plan.overrides, f"results.folder={plan.aside}"])
    begun = _begun(plan.aside, recipe)
    tell(f"{'goes on' if begun else 'starts'} in {plan.aside}")
    try:
        with plan.naming():
            result = work(make_ready(recipe), _now_and_then(tell), resume=begun, tell=tell)
    except RunError as error:
        raise RunError(f"{name}: {error}") from error
    plan.aside.rename(plan.folder)
    seconds = f"{result.summary['wall_s']:.1f} s in rounds"
    if not begun:  # the rounds' seconds are those of all its parts
        seconds = f"{time.perf_counter() - started:.1f} s in all, {seconds}"
    tell(f"{_headline(result)}; {seconds}")


def _begun(folder: Path, recipe: Recipe) -> bool:
    """Whether the same run was begun there and cut off; what another recipe left there is removed."""
    config, asked = folder / "config.yaml", recipe.model_dump(exclude={"results"})
    if config.is_file() and load_recipe(config).model_dump(exclude={"results"}) == asked:
        return True
    if folder.exists():
        shutil.rmtree(folder)
    return False


def _headline(result: Result) -> str:
    values = [
        f"{model} {metric} {found['last'][metric]:.4f}"
        for model, found in result.summary["models"].items()
        for metric in ("amp", "server_accuracy")
        if found["last"][metric] is not None
    ]
    return ", ".join(values)
