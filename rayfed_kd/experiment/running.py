"""A recipe run, and gone on with: in this process or on Ray.

result = rayfed_kd.run("quickstart", {"method.gamma": 0.5}, rounds=3)
print(result)
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfed_kd.data.decoding import decoding_told
from rayfed_kd.errors import RecipeError, RunError, changes, naming
from rayfed_kd.experiment.engines import Launcher, make_launcher
from rayfed_kd.experiment.header import describe_run
from rayfed_kd.experiment.preparation import Prepared, find_own_modules, make_ready, method_location
from rayfed_kd.experiment.progress import listeners
from rayfed_kd.experiment.result import OnEvent, Result, Tell, read_summary
from rayfed_kd.experiment.resumability import (
    RUNS_UNDER_WAY,
    check_resumable,
    check_unused,
    decisive,
    last_checkpoint,
    way_on,
)
from rayfed_kd.files.folders import locked_folder, no_folder
from rayfed_kd.recipe.loading import RecipeSource, load_recipe
from rayfed_kd.recipe.overrides import Overrides, override_lines
from rayfed_kd.recipe.schema import EXECUTION, Recipe
from rayfed_kd.recipe.strict import Named
from rayfed_kd.results.schemas import CONFIG, TABLES
from rayfed_kd.results.summary import is_finished
from rayfed_kd.results.tables import last_round, read_tables
from rayfed_kd.results.telling import as_teller

if TYPE_CHECKING:
    from rayfed_kd.cluster.ray_backend.machines import Surveyed

# More rounds only add to those that are there, also where `stop` ended them; EXECUTION's sections change no
# result, but for the last bits that `placement.threads` decides.
CHANGEABLE = ("rounds", "stop", *EXECUTION)


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
    on_event, tell = listeners(progress, on_event, tell)
    with naming(recipe):
        resolved = load_recipe(recipe, override_lines(overrides, keys))
        launcher = make_launcher(local=local, address=address)
        # Before Ray starts, so that these are reported at once: a misspelt name, a folder that is taken.
        method_location(resolved)
        if resolved.results.path is not None:
            check_unused(resolved.results.path)
        return run_resolved(resolved, launcher, on_event, tell, resume=False, restart=False)


def resume(
    folder: str | Path,
    overrides: Overrides = (),
    *,
    local: bool = False,
    address: str | None = None,
    progress: bool | None = None,
    on_event: OnEvent | None = None,
    tell: Tell | None = None,
    anyway: bool = False,
    restart: bool = False,
    **keys: Any,
) -> Result:
    """Goes on with a run from its newest checkpoint; the result is that of an uninterrupted run, bit for bit.

    Args:
        folder: the run's.
        overrides: of rounds, stop, placement (but for its threads), checkpoint, faults and results alone.
        local, address, progress, on_event: as in `run`; a run that began on Ray may go on without it, and the
            other way round.
        tell: called with a line about what is found.
        anyway: also if the run was begun with other code or files of the user's, or versions of packages.
        restart: if no checkpoint can be used, begin again at round 1 and delete the recorded rounds.
        keys: further changes by keyword, as rounds=20.
    Raises: RecipeError if this is no run, or not this run any more, with what differs.
    """
    folder = Path(folder).resolve()
    launcher = make_launcher(local=local, address=address)
    find_own_modules()  # before it is asked whether they are still those that the run was begun with
    on_event, tell = listeners(progress, on_event, tell)
    # What begins again at round 1 continues no bits of the past.
    anew = restart and last_checkpoint(folder) is None
    lines = override_lines(overrides, keys)
    recipe = _resumed_recipe(folder, lines, anyway=anyway or anew)
    # By names alone: a power cut may have damaged the newest parts, which go when the run goes on.
    done, summary = last_round(folder / TABLES), read_summary(folder)
    if recipe.rounds < done:
        raise RecipeError(_too_few_rounds(folder, recipe.rounds, done))
    if is_finished(summary) and summary["rounds"] == recipe.rounds:
        tell(f"{folder} is finished: {recipe.rounds} rounds. `rounds=N` with a larger N extends it.")
        return Result(folder, summary, read_tables(folder), {})
    way = "stop=null" if recipe.stop else f"rounds={recipe.rounds}"
    # With further rounds in its tables it was gone on with, and killed. What a listener ended no key of the
    # recipe keeps from going on.
    ended = summary.get("stopped") and summary["rounds"] == done and way not in lines
    if ended and recipe.stop == load_recipe(folder / CONFIG).stop:
        tell(f"{folder} is finished: {summary['stopped']}. `{way}` goes on to round {recipe.rounds}.")
        return Result(folder, summary, read_tables(folder), {})
    return run_resolved(recipe, launcher, on_event, tell, resume=True, restart=restart)


def _too_few_rounds(folder: Path, rounds: int, done: int) -> str:
    again = f"rayfed-kd run {shlex.quote(str(folder / CONFIG))} rounds={rounds} results.folder=ANOTHER"
    return (
        f"rounds = {rounds}: {folder} has {done} rounds already, and resuming takes none of them back, also "
        f"with --restart, which begins again only where no checkpoint can be used. `{again}` runs the recipe "
        f"anew with {rounds}"
    )


def _resumed_recipe(folder: Path, overrides: Sequence[str], *, anyway: bool) -> Recipe:
    from rayfed_kd.results.folder import changed_packages

    config = folder / CONFIG
    if not config.is_file():
        if not folder.is_dir():
            raise no_folder(folder)
        runs = any(folder.glob("*/config.yaml")) or any(folder.glob("*/*/config.yaml"))
        raise RecipeError(
            f"{folder} holds no run itself, but runs below it. A comparison goes on with its compare "
            "command, a search with its tune command and --resume"
            if runs
            else f"{folder} holds no run: there is no config.yaml. If a run was cut off before it had begun, "
            "the command that started it works again"
        )
    begun, recipe = load_recipe(config), load_recipe(config, overrides)
    if recipe.results.folder not in (begun.results.folder, None):
        raise RecipeError("results.folder: a run goes on in its own folder; expected no override of it")
    results = recipe.results.model_copy(update={"folder": str(folder)})  # it may have been moved
    recipe = recipe.model_copy(update={"results": results})
    if changed := changes(decisive(begun, CHANGEABLE), decisive(recipe, CHANGEABLE)):
        free = f"only {', '.join(CHANGEABLE)} may change, but for placement.threads"
        raise RecipeError(f"{folder}: {changed}. On resuming {free}")
    if (differing := changed_packages(folder)) and not anyway:
        raise RecipeError(
            f"{folder} was begun with {'; '.join(differing)}: the bits may differ. "
            "`--anyway` goes on nevertheless"
        )
    return recipe


def run_resolved(
    recipe: Recipe, launcher: Launcher, on_event: OnEvent, tell: Tell, *, resume: bool, restart: bool
) -> Result:
    """Prepare a recipe while its engine starts, and run it; arguments as in `run_prepared`."""
    teller = as_teller(tell)
    with launcher.session(recipe) as wait_until_ready:
        teller.phase("reading data, model and method")
        with decoding_told(teller.phase):
            prepared = make_ready(recipe)
        if teller is not tell:  # all others get the notes with what runs
            for note in prepared.setting.notes:
                tell(f"note: {note}")
        if launcher.awaited:
            teller.phase(launcher.awaited)
        wait_until_ready()
        return run_prepared(prepared, launcher, on_event, resume=resume, restart=restart, tell=tell)


@contextmanager
def _resumable(folder: Path, options: tuple[str, ...]) -> Iterator[None]:
    """The message of a failed or interrupted run says how to go on; `options` are what the command needs."""
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
    from rayfed_kd.results.folder import chosen_folder, write_description

    recipe, setting = prepared.recipe, prepared.setting
    layout = launcher.layout(prepared)  # which also says whether there is room
    teller = as_teller(tell)
    if teller is tell:  # somebody listens to more than lines
        teller.begin(describe_run(prepared, launcher.name, layout))
    folder = chosen_folder(recipe)
    with locked_folder(folder, "results.folder", "running"):
        if resume:
            check_resumable(folder, setting, restart=restart, tell=tell)
        else:
            check_unused(folder)
        write_description(folder, recipe, setting, launcher.name, resume=resume)
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
