"""Resumes an interrupted run from its newest checkpoint."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.engines import make_launcher
from rayfed_kd.experiment.preparation import find_own_modules
from rayfed_kd.experiment.progress import listeners
from rayfed_kd.experiment.result import OnEvent, Result, Tell, read_summary
from rayfed_kd.experiment.running import run_resolved
from rayfed_kd.files import no_folder
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.overrides import Overrides, override_lines
from rayfed_kd.recipe.schema import EXECUTION, Recipe
from rayfed_kd.results.schemas import CONFIG, TABLES

# More rounds only add to those that are there, also where `stop` ended them; EXECUTION's sections change no
# result.
CHANGEABLE = ("rounds", "stop", *EXECUTION)


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
        overrides: of rounds, stop, placement, checkpoint and faults alone.
        local, address, progress, on_event: as in `run`; a run that began on Ray may go on without it, and the
            other way round.
        tell: called with a line about what is found.
        anyway: also if the run was begun with other versions of packages.
        restart: if no checkpoint can be used, begin again at round 1 and delete the recorded rounds.
        keys: further changes by keyword, as rounds=20.
    Raises: RecipeError if this is no run, or not this run any more, with what differs.
    """
    from rayfed_kd.experiment.resumability import last_checkpoint
    from rayfed_kd.results.summary import is_finished
    from rayfed_kd.results.tables import last_round, read_tables

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
    if is_finished(summary) and summary.get("stopped") and recipe.stop == load_recipe(folder / CONFIG).stop:
        # What a listener ended no key of the recipe keeps from going on.
        way = "stop=null" if recipe.stop else f"rounds={recipe.rounds}"
        if way not in lines:
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
    begun, recipe = load_recipe(config), load_recipe(config, [*overrides, f"results.folder={folder}"])
    before, after = begun.model_dump(), recipe.model_dump()
    changed = [key for key in before if key not in CHANGEABLE and before[key] != after[key]]
    if changed:
        shown = "; ".join(f"{key} was {before[key]}, is {after[key]}" for key in changed)
        raise RecipeError(f"{folder}: {shown}. On resuming only {', '.join(CHANGEABLE)} may change")
    differing = changed_packages(folder)
    if differing and not anyway:
        raise RecipeError(
            f"{folder} was begun with {'; '.join(differing)}: the bits may differ. "
            "`--anyway` goes on nevertheless"
        )
    return recipe
