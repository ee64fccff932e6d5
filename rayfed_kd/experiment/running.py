"""A recipe run: in this process or on Ray.

result = rayfed_kd.run("quickstart", {"method.gamma": 0.5}, rounds=3)
print(result)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfed_kd.errors import RunError, naming
from rayfed_kd.experiment.engines import Launcher, make_launcher
from rayfed_kd.experiment.header import begin_telling, make_ready_telling
from rayfed_kd.experiment.preparation import Prepared, method_location
from rayfed_kd.experiment.progress import listeners
from rayfed_kd.experiment.result import OnEvent, Result, Tell
from rayfed_kd.recipe.loading import RecipeSource, load_recipe
from rayfed_kd.recipe.overrides import Overrides, override_lines
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.strict import Named
from rayfed_kd.results.telling import as_teller

if TYPE_CHECKING:
    from rayfed_kd.cluster.ray_backend.machines import Surveyed


def run(
    recipe: RecipeSource,
    overrides: Overrides = (),
    *,
    local: bool = False,
    address: str | None = None,
    progress: bool | None = None,
    on_event: OnEvent | None = None,
    tell: Tell | None = None,
    **keys: Any,
) -> Result:
    """Runs a recipe.

    Args:
        recipe: a YAML file's path, a name of `rayfed-kd recipes`, or the recipe as nested mappings.
        overrides: changes to it: a mapping, as {"method.gamma": 0.5}, or a list, as ["method.gamma=0.5"].
            A mapping as a value replaces a whole section, as {"method": {"name": "fedavg"}} does.
        local: in this process, without Ray. The recipe's section of that name is changed by `overrides`, as
            {"local.epochs": 1}.
        address: of a Ray cluster; None: RAY_ADDRESS if set, else a private Ray on this machine.
        progress: show each round in one line that is rewritten; None: if this is a notebook.
        on_event: called after each round with what happened, in place of the line. StopIteration raised in
            it ends the run after the next evaluated round, as the recipe's `stop` does.
        tell: called with each line that the user should read.
        keys: further changes by the recipe's first keys, as rounds=3 or method={"name": "fedavg"}.
    Returns: the summary, the tables and the last evaluated models.
    Raises: RecipeError or DataError before the first round; RunError after it.
    """
    from rayfed_kd.experiment.resumability import check_unused

    on_event, tell = listeners(progress, on_event, tell)
    with naming(recipe):
        resolved = load_recipe(recipe, override_lines(overrides, keys))
        launcher = make_launcher(local=local, address=address)
        # Before Ray starts, so that these are reported at once: a misspelt name, a folder that is taken.
        method_location(resolved)
        if resolved.results.path is not None:
            check_unused(resolved.results.path)
        return run_resolved(resolved, launcher, on_event, tell)


def run_resolved(
    recipe: Recipe,
    launcher: Launcher,
    on_event: OnEvent,
    tell: Tell,
    *,
    resume: bool = False,
    restart: bool = False,
) -> Result:
    """Prepare a recipe while its engine starts, and run it; arguments as in `run_prepared`."""
    with launcher.session(recipe) as wait_until_ready:
        prepared = make_ready_telling(recipe, tell)
        if launcher.awaited:
            as_teller(tell).phase(launcher.awaited)
        wait_until_ready()
        return run_prepared(prepared, launcher, on_event, resume=resume, restart=restart, tell=tell)


@contextmanager
def _resumable(folder: Path, options: tuple[str, ...]) -> Iterator[None]:
    """The message of a failed or interrupted run says how to go on; `options` are what the command needs."""
    from rayfed_kd.experiment.resumability import RUNS_UNDER_WAY, way_on

    RUNS_UNDER_WAY[folder] = options
    try:
        yield
    except KeyboardInterrupt as interruption:
        interruption.args = (way_on(folder),)
        raise
    except RunError as error:
        error.args = (f"{error}\n{way_on(folder)}",)
        raise
    finally:
        del RUNS_UNDER_WAY[folder]


def run_prepared(
    prepared: Prepared,
    launcher: Launcher,
    on_event: OnEvent,
    *,
    resume: bool = False,
    restart: bool = False,
    tell: Tell = lambda line: None,
) -> Result:
    """Run a prepared recipe in its folder, on an engine that is ready.

    Args:
        prepared: the checked recipe.
        launcher: runs it on its engine.
        on_event, tell: as in `run`.
        resume: go on from the newest checkpoint in the folder.
        restart: on resuming without a usable checkpoint begin again, and delete the recorded rounds.

    Raises:
        RecipeError: the folder holds another run, or one that cannot go on; it is untouched.
    """
    from rayfed_kd.experiment.resumability import check_resumable, check_unused
    from rayfed_kd.results.folder import begin_run, continue_run, run_folder
    from rayfed_kd.results.tables import read_tables

    recipe, setting = prepared.recipe, prepared.setting
    layout = launcher.layout(prepared)  # which also says whether there is room
    begin_telling(prepared, launcher.name, layout, tell)
    with run_folder(recipe) as folder:
        if resume:
            check_resumable(folder, setting, restart=restart, tell=tell)
            continue_run(folder, recipe, setting, launcher.name)
        else:
            check_unused(folder)
            begin_run(folder, recipe, setting, launcher.name)
        with _resumable(folder, launcher.resume_options):
            summary, models = launcher.launch(prepared, folder, on_event, tell, resume=resume)
    return Result(folder, summary, read_tables(folder), models)


def ray_machines(address: str | None = None) -> list[Surveyed]:
    """The machines of a Ray cluster, or of a private Ray that is started and ended for the question.

    Raises: RecipeError if nothing answers at the address; RunError if a machine cannot be asked.
    """
    from rayfed_kd.cluster.ray_backend.machines import survey
    from rayfed_kd.cluster.ray_backend.session import RaySession

    with RaySession(Recipe(method=Named(name="fedavg")), address) as session:
        session.ready()
        return survey()
