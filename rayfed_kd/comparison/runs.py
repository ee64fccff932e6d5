"""A comparison's runs: one after another in this process, or several at a time on one Ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial

from rayfed_kd.comparison.planning import PlannedRun
from rayfed_kd.errors import RecipeError, RunError
from rayfed_kd.experiment.engines import InProcess, Launcher, OnRay
from rayfed_kd.experiment.preparation import make_ready, prepare
from rayfed_kd.experiment.result import OnEvent, Result, Tell
from rayfed_kd.experiment.running import run_prepared
from rayfed_kd.files.folders import locked_folder
from rayfed_kd.files.whole import empty_folder
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.overrides import override_lines
from rayfed_kd.results.console import Work
from rayfed_kd.results.folder import write_recipe
from rayfed_kd.results.schemas import CONFIG
from rayfed_kd.results.telling import Event

_one_at_a_time = threading.Lock()  # listens to the runs that run together


def run_each(
    planned: Sequence[PlannedRun],
    *,
    local: bool,
    address: str | None,
    jobs: int | None,
    tell: Tell,
    work: Work | None = None,
    on_event: OnEvent | None = None,
) -> None:
    """Run a comparison's runs; each run's folder is renamed when the run is finished.

    Args:
        planned: the runs; one that was cut off goes on from its last checkpoint.
        local: run one after another in this process, without Ray.
        address: of a Ray cluster; None: RAY_ADDRESS, else a private Ray.
        jobs: how many at a time on Ray; None: as many as have room for a client actor each.
        tell: called with a line when a run starts and when it ends.
        work: is kept up with how far each run is.
        on_event: called with each round's event, from one run's thread at a time.

    Raises:
        RecipeError, DataError: a row cannot be run; raised before the first run.
        RunError: a run failed; it names the run.
    """
    work = work or Work()
    for note in check_rows(planned, work):
        tell(f"note: {note}")
    if local:
        for run in planned:
            _run_planned(run, tell, work, InProcess(), on_event)
        return
    work.phase = OnRay(address).awaited
    from rayfed_kd.cluster.ray_backend.session import RaySession, run_together

    def run_on_ray(run: PlannedRun, share: int, stop: threading.Event) -> None:
        _run_planned(run, tell, work, OnRay(share=share, stop=stop), on_event)

    rows = {run.label: run for run in planned}.values()  # which may differ in what their actors request
    recipes = [load_recipe(run.source, run.overrides) for run in rows]
    largest = max(recipes, key=lambda recipe: recipe.placement.server.num_cpus)
    with RaySession(largest, address, jobs or len(planned)) as session:
        session.ready()
        work.phase = "starting the runs"
        run_together([partial(run_on_ray, run) for run in planned], recipes, jobs)


def check_rows(planned: Sequence[PlannedRun], work: Work) -> Iterable[str]:
    """Build every row once, and note how many rounds its runs have.

    Args:
        planned: the runs of one table.
        work: is told which row is looked at, and of its runs' rounds.

    Returns: their notes, each once: a table's rows mostly share one data set.

    Raises: RecipeError with all rows that cannot be run, a line each.
    """
    notes, faults = dict[str, None](), list[RecipeError]()
    first_seeds = {run.label: run for run in planned}  # a row's seeds differ in nothing that can fail
    for run in first_seeds.values():
        work.phase = f"checking {run.label}"
        try:
            with run.naming():
                prepared = prepare(run.source, run.overrides)
        except RecipeError as error:
            faults.append(error)
            continue
        notes |= dict.fromkeys(prepared.setting.notes)
        for seed in (seed for seed in planned if seed.label == run.label):
            work.expect(seed.name, prepared.recipe.rounds)
    if faults:
        raise faults[0] if len(faults) == 1 else RecipeError("\n".join(map(str, faults)))
    return notes


def _run_planned(
    run: PlannedRun, tell_all: Tell, work: Work, launcher: Launcher, listener: OnEvent | None
) -> None:
    name = run.name

    def tell(line: str) -> None:  # several may run at a time: each line names its run
        tell_all(f"{name}: {line}")

    def on_event(event: Event) -> None:
        work.round(name, event["round"])
        if listener is not None:
            with _one_at_a_time:
                listener({**event, "run": name})

    started = time.perf_counter()
    place = {"results.folder": run.unfinished_folder, "results.group": run.folder.parent.name}
    recipe = load_recipe(run.source, [*run.overrides, *override_lines(place)])
    resumed = run.kept_folder is not None
    if not resumed and run.unfinished_folder.exists():  # cut off before its first checkpoint
        with locked_folder(run.unfinished_folder, name, "running"):
            empty_folder(run.unfinished_folder)
    tell(f"{'goes on' if resumed else 'starts'} in {run.unfinished_folder}")
    work.start(name)
    try:
        with run.naming():
            ready = make_ready(recipe)
            # restart: without a usable checkpoint the run begins again, as nobody is there to be asked.
            result = run_prepared(ready, launcher, on_event, resume=resumed, restart=True, tell=tell)
    except RunError as error:
        raise RunError(f"{name}: {error}") from error
    # A finished run's recipe names its folder as it is then called.
    results = recipe.results.model_copy(update={"folder": str(run.folder)})
    recipe = load_recipe(run.unfinished_folder / CONFIG).model_copy(update={"results": results})
    write_recipe(run.unfinished_folder, recipe)
    run.unfinished_folder.rename(run.folder)
    work.end(name)
    seconds = f"{result.summary['wall_s']:.1f} s in rounds"
    if not resumed:  # a resumed run's seconds in rounds are of all its parts, its other seconds are not known
        seconds = f"{time.perf_counter() - started:.1f} s in all, {seconds}"
    tell(f"{_last_accuracies(result)}; {seconds}")


def _last_accuracies(result: Result) -> str:
    values = [
        f"{model} {metric} {numbers['last'][metric]:.4f}"
        for model, numbers in result.summary["models"].items()
        for metric in ("amp", "server_accuracy")
        if numbers["last"][metric] is not None
    ]
    return ", ".join(values)
