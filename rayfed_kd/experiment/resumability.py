"""Whether and how a run's folder can be gone on with."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfed_kd.errors import RecipeError, counted
from rayfed_kd.experiment.result import Tell, read_summary
from rayfed_kd.files.whole import read_json, read_parquet
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.results.schemas import CONFIG, DESCRIPTION, UNFINISHED
from rayfed_kd.results.summary import is_finished
from rayfed_kd.results.tables import last_round

if TYPE_CHECKING:
    from rayfed_kd.setting.setting import Setting

# Folder -> options of the resuming command, for each run that this process has begun and not ended.
RUNS_UNDER_WAY: dict[Path, tuple[str, ...]] = {}


def way_on(folder: Path) -> str:
    """How a run that was cut off goes on: the command, and the round after which it does.

    Args:
        folder: the run's.
    """
    command, last = resuming_command(folder), last_checkpoint(folder)
    if folder.suffix == UNFINISHED or last is not None:
        return f"{command} goes on{'' if last is None else f' after round {last}'}"
    return f"no checkpoint is there yet; {command[:-1]} --restart` begins again at round 1"


def resuming_command(folder: Path) -> str:
    """The command that goes on with a run.

    Args:
        folder: the run's.
    """
    # `compare` renames such a folder when its run is finished, which `resume` would not do.
    if folder.suffix == UNFINISHED:
        return "the same compare command again"
    return f"`{shlex.join(('rayfed-kd', 'resume', str(folder), *RUNS_UNDER_WAY.get(folder, ())))}`"


def last_checkpoint(folder: Path) -> int | None:
    """The round of a run's newest checkpoint; None if there is none. A checkpoint's note is written last."""
    notes = (folder / "checkpoints").glob("round-*.json")
    return max((int(note.stem.removeprefix("round-")) for note in notes), default=None)


def decisive(recipe: Recipe, free: Collection[str]) -> dict[str, Any]:
    """What a recipe says but for its free keys; `placement.threads` is there, as it decides the last bits."""
    return recipe.model_dump(exclude={*free}) | {"placement.threads": recipe.placement.threads}


def check_unused(folder: Path) -> None:
    """Check that a new run may begin in a folder.

    Args:
        folder: it need not exist.

    Raises:
        RecipeError: it holds a run, or what is left of one.
    """
    if (folder / CONFIG).exists():
        command, summary = f"rayfed-kd resume {shlex.quote(str(folder))}", read_summary(folder)
        command += " --local" if read_json(folder / "environment.json").get("engine") == "local" else ""
        if is_finished(summary):
            rounds = counted(summary["rounds"], "round")
            holds = f"a finished run of {rounds}; `{command} rounds=N` with a larger N extends it"
        else:
            holds = f"a run already; `{command}` goes on with it"
        raise RecipeError(f"results.folder: {folder} holds {holds}. Give another folder for a new run")
    # A run that was killed before it began left its own, which are written anew.
    files = () if "id" in read_json(folder / "environment.json") else (*DESCRIPTION, "summary.json")
    if remains := [name for name in ("checkpoints", "tables", *files) if (folder / name).exists()]:
        raise RecipeError(
            f"results.folder: {folder} has {' and '.join(remains)}, which a run writes, but no {CONFIG}; "
            "give another folder"
        )


def check_resumable(folder: Path, setting: Setting, *, restart: bool, tell: Tell) -> None:
    """Check that the run in a folder is this setting's, and that it has a checkpoint or nothing to lose.

    Args:
        folder: the run's, locked by this process. Nothing in it is changed.
        setting: made of the folder's recipe.
        restart: without a usable checkpoint the recorded rounds may go.
        tell: called with a line if they do.

    Raises:
        RecipeError: partition or devices are others than the folder's, or there is no usable checkpoint,
            `restart` is false and rounds would be lost.
    """
    from rayfed_kd.cluster.server.checkpoints import Checkpointer
    from rayfed_kd.results.folder import check_data

    check_data(folder, setting)
    _check_partition(folder, setting)
    _check_devices(folder, setting)
    faults: list[str] = []
    newest = Checkpointer(folder, setting.recipe.checkpoint).newest(faults.append, folder / "tables")
    if newest is not None:
        _check_rounds(folder, setting, newest.with_suffix(".json"))
        return
    rounds = last_round(folder / "tables")
    if not rounds:
        return
    recorded = counted(rounds, "recorded round")
    if not restart:
        why = "".join(f"\n{fault}" for fault in faults)
        raise RecipeError(
            f"{folder} has no usable checkpoint, so the run would begin again at round 1, and its {recorded} "
            f"would be deleted. `rayfed-kd resume {shlex.quote(str(folder))} --restart` does so{why}"
        )
    tell(f"no usable checkpoint: the run begins again at round 1, without its {recorded}")


def _check_rounds(folder: Path, setting: Setting, note: Path) -> None:
    """Whether the rounds that are done would be the same in a run of as many as are wanted now.

    Args:
        note: of the checkpoint that the run would go on from.
    """
    from rayfed_kd.recipe.loading import load_recipe

    recipe = setting.recipe
    begun, rates = load_recipe(folder / CONFIG).rounds, recipe.local.lr_schedule
    if begun == recipe.rounds:
        return
    if rates and rates.rounds and rates.rounds.depends_on_total:
        why = (
            f"local.lr_schedule.rounds, a {rates.rounds.name}, falls over all rounds; in a run that is to be "
            f"extended it says over how many, as local.lr_schedule.rounds.over={recipe.rounds}"
        )
    elif read_json(note).get("asked_rounds"):
        why = f"{recipe.method.name} goes by the number of all rounds (ctx.rounds)"
    else:
        return
    raise RecipeError(
        f"{folder}: rounds was {begun}, is {recipe.rounds}, and those that are done would be others: {why}. "
        f"`rayfed-kd run {shlex.quote(str(folder / CONFIG))} rounds={recipe.rounds} results.folder=ANOTHER` "
        "runs it anew"
    )


def _check_partition(folder: Path, setting: Setting) -> None:
    import numpy as np

    from rayfed_kd.data.partition import Partition

    path = folder / "partition.parquet"
    if not path.exists():  # it is written again, as the recipe gives it
        return
    ours = setting.partition
    saved = Partition.load(path, len(setting.dataset.train.labels))
    same = ours.train == saved.train and ours.test == saved.test
    if not (same and np.array_equal(ours.public, saved.public)):
        raise RecipeError(f"{folder}: its partition is another than its recipe and the data give now")


def _check_devices(folder: Path, setting: Setting) -> None:
    devices, path = setting.devices, folder / "devices.parquet"
    if devices is not None and path.exists() and not devices.table().equals(read_parquet(path)):
        raise RecipeError(f"{folder}: its devices are others than its recipe and clock.file give now")
