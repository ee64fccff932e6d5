"""`rayfed_kd.tune`: search a recipe's coefficients; each trial is a run that Ray Tune starts and may stop."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfed_kd.errors import counted, optional_package
from rayfed_kd.experiment.engines import OnRay
from rayfed_kd.experiment.preparation import Prepared, make_ready, method_location, prepare
from rayfed_kd.experiment.result import OnEvent, Tell
from rayfed_kd.files.folders import file_name
from rayfed_kd.recipe.loading import RecipeSource, load_recipe, refuse_folder
from rayfed_kd.recipe.overrides import Overrides, override_lines
from rayfed_kd.tuning.space import Coefficients, coefficient_overrides, read_space

if TYPE_CHECKING:
    from rayfed_kd.results.console import Work
    from rayfed_kd.setting.setting import Setting
    from rayfed_kd.tuning.search_folder import SchedulerName, SearchName
    from rayfed_kd.tuning.search_result import SearchResult
    from rayfed_kd.tuning.search_setup import Search


def tune(
    recipe: RecipeSource,
    space: str | Path,
    overrides: Overrides = (),
    *,
    samples: int | None = None,
    search: SearchName = "random",
    scheduler: SchedulerName = "asha",
    metric: str | None = None,
    concurrent: int | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    address: str | None = None,
    on_event: OnEvent | None = None,
    tell: Tell = lambda line: None,
    work: Work | None = None,
    **keys: Any,
) -> SearchResult:
    """Search a recipe's coefficients with Ray Tune; each trial is a run, all with the recipe's seed.

    Args:
        recipe, overrides, keys: what every trial starts from, as in `rayfed_kd.run`.
        space: a YAML file that says what is searched, or its name; rayfed_kd/tuning/space.py shows one.
        samples, search, scheduler, metric: as in `rayfed_kd.tuning.search_setup.prepare_search`.
        concurrent: trials at a time; None: as many as have room for a client actor and a server each.
        folder: where everything goes; None: runs/tune- and the recipe's name.
        resume: go on with the search in the folder.
        address: of a Ray cluster; None: RAY_ADDRESS, else a private Ray.
        on_event: called after each evaluated round of each trial, as in `run`; the event's `run` says of
            which. StopIteration raised in it stops the trial.
        tell: called with a line when a trial starts and ends.
        work: is kept up with how far each trial is.

    Returns: what the search found; the tables, pictures and recipe that the command leaves are written.

    Raises:
        RecipeError, DataError: the search cannot be run; raised before the first trial.
        RunError: no trial has a value.
    """
    lines = override_lines(overrides, keys)
    refuse_folder(lines, "a search gives each trial")
    prepared = prepare(recipe, lines)
    from rayfed_kd.tuning.search_setup import prepare_search

    name = prepared.recipe.method.name if isinstance(recipe, Mapping) else Path(recipe).stem
    prepared_search = prepare_search(
        prepared.setting,
        read_space(space),
        partial(accept_coefficients, prepared),
        samples=samples,
        search=search,
        scheduler=scheduler,
        metric=metric,
        folder=folder or f"runs/tune-{file_name(name)}",
    )
    options = {"concurrent": concurrent, "address": address, "work": work, "on_event": on_event}
    with running(prepared_search, tell, resume=resume, **options):
        from rayfed_kd.tuning.search_result import result_of_search

        return result_of_search(prepared_search)


@contextmanager
def running(search: Search, tell: Tell, *, resume: bool, **options: Any) -> Iterator[None]:
    """Run the trials of a search that passed every check; its folder is claimed until the block ends.

    Args:
        search: the search.
        tell, resume: as in `tune`.
        options: `concurrent`, `address`, `work` and `on_event` of `tune`.

    Raises: as `tune`.
    """
    # Before the folder is claimed: without Ray Tune there is to be no search in it.
    with optional_package("tune: Ray Tune", "tune"):
        import rayfed_kd.tuning.ray_tune  # noqa: F401
    with search.folder.claimed(search.settings, resume=resume):
        for note in search.notes:
            tell(f"note: {note}")
        _search_on_ray(search, tell, **options)
        yield


def accept_coefficients(prepared: Prepared, coefficients: Coefficients) -> Setting:
    """Check that the recipe can be run with these coefficients.

    Data and partition are made again only if the coefficients change them: that can take minutes.

    Args:
        prepared: the recipe that every trial starts from.
        coefficients: recipe key -> value.

    Returns: what the recipe with them is made into.

    Raises:
        RecipeError, DataError: it cannot.
    """
    from rayfed_kd.setting.blueprint import make_method, read_names
    from rayfed_kd.setting.client_samples import check_samples
    from rayfed_kd.timing.reading import check_exchanges, check_timing

    setting = prepared.setting
    changed = load_recipe(prepared.recipe.model_dump(), coefficient_overrides(coefficients))
    sections = ("data", "partition", "clock", "seed")
    if any(getattr(changed, key) != getattr(prepared.recipe, key) for key in sections):
        return make_ready(changed).setting
    method = make_method(method_location(changed), changed.method)
    check_exchanges(changed, method)
    timing, codecs = read_names(changed)
    check_timing(timing, changed, method)
    setting = replace(setting, recipe=changed, method=method, timing=timing, codecs=codecs)
    setting.check()
    check_samples(setting)
    return setting


def _search_on_ray(
    search: Search,
    tell: Tell,
    *,
    concurrent: int | None,
    address: str | None,
    work: Work | None = None,
    on_event: OnEvent | None = None,
) -> None:
    from rayfed_kd.cluster.ray_backend.machines import ray_nodes
    from rayfed_kd.cluster.ray_backend.placement import runs_at_a_time
    from rayfed_kd.cluster.ray_backend.resources import divided
    from rayfed_kd.cluster.ray_backend.session import RaySession
    from rayfed_kd.tuning.ray_tune import run_trials
    from rayfed_kd.tuning.trial import TrialRun

    recipe = search.recipe
    awaited, trials = OnRay(address).awaited, counted(search.trials, "trial")
    tell(f"{trials}, {search.settings.summary}, for {search.metric}: {awaited}")
    if work is not None:
        work.phase = awaited
    with RaySession(recipe, address, concurrent or search.trials, environments=True) as session:
        session.ready()
        nodes = ray_nodes()
        at_a_time = runs_at_a_time("--concurrent", concurrent, search.trials, recipe, nodes)
        trial_run = TrialRun(search, divided(nodes, at_a_time), str(Path.cwd()), tuple(sys.argv))
        trial_run.hosts(recipe)  # raises if not even one trial has room
        run_trials(trial_run, at_a_time, tell, work, on_event)
    trial_run.end_stopped(tell)
