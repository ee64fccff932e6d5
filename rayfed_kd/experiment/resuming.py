"""Resumes an interrupted run from its newest checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.engines import make_launcher
from rayfed_kd.experiment.preparation import Prepared, make_ready
from rayfed_kd.experiment.result import OnEvent, Result, Tell, _silent, _tables, read_summary
from rayfed_kd.experiment.running import run_prepared
from rayfed_kd.files import read_parquet
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.schema import EXECUTION, Recipe

CHANGEABLE = ("rounds", *EXECUTION)


def resume(
    folder: str | Path,
    overrides: Sequence[str] = (),
    *,
    engine: str | None = None,
    local: bool = False,
    address: str | None = None,
    on_event: OnEvent = _silent,
    tell: Tell = lambda line: None,
    anyway: bool = False,
) -> Result:
    """Goes on with a run from its newest checkpoint; the result is that of an uninterrupted run, bit for bit.

    Args:
        folder: the run's.
        overrides: of rounds, placement, checkpoint and faults alone.
        engine, local, address, on_event: as in `run`; it need not be the engine that began the run.
        tell: called with a line about what is found.
        anyway: also if the run was begun with other versions of packages.
    Raises: RecipeError if this is no run, or not this run any more, with what differs.
    """
    folder = Path(folder).resolve()
    launcher = make_launcher(engine, local=local, address=address)
    recipe = _resumed_recipe(folder, overrides, anyway=anyway)
    tables, summary = _tables(folder), read_summary(folder)
    if summary.get("status") == "finished" and summary["rounds"] == recipe.rounds:
        tell(f"{folder} is finished: {recipe.rounds} rounds. `rounds=N` with a larger N extends it.")
        return Result(folder, summary, tables, {})
    if recipe.rounds < tables["rounds"].num_rows:
        raise RecipeError(
            f"rounds = {recipe.rounds}: {folder} has {tables['rounds'].num_rows} rounds already"
        )
    with launcher.session(recipe) as wait_until_ready:
        prepared = make_ready(recipe)
        _check_given(prepared, folder)
        wait_until_ready()
        return run_prepared(prepared, launcher, on_event, resume=True, tell=tell)


def _resumed_recipe(folder: Path, overrides: Sequence[str], *, anyway: bool) -> Recipe:
    from rayfed_kd.results.folder import changed_packages

    config = folder / "config.yaml"
    if not config.is_file():
        raise RecipeError(f"{folder} holds no run: there is no config.yaml")
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


def _check_given(prepared: Prepared, folder: Path) -> None:
    from rayfed_kd.data.partition import Partition

    ours = prepared.setting.partition
    saved = Partition.load(folder / "partition.parquet", len(prepared.setting.dataset.train.labels))
    pairs = [*zip(ours.train, saved.train, strict=False), *zip(ours.test, saved.test, strict=False)]
    pairs.append((ours.public, saved.public))
    if len(ours.train) != len(saved.train) or any((a.shape != b.shape) or (a != b).any() for a, b in pairs):
        raise RecipeError(f"{folder}: its partition is another than its recipe and the data give now")
    devices, path = prepared.setting.devices, folder / "devices.parquet"
    if devices is not None and not devices.table().equals(read_parquet(path)):
        raise RecipeError(f"{folder}: its devices are others than its recipe and clock.file give now")
