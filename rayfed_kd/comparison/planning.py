"""A study as a list of runs: which recipe, which seed, and where each result lies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rayfed_kd.comparison.studies import Study
from rayfed_kd.errors import RecipeError, naming
from rayfed_kd.experiment.resumability import last_checkpoint
from rayfed_kd.files.folders import file_name
from rayfed_kd.recipe.loading import RecipeSource
from rayfed_kd.results.schemas import UNFINISHED


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study.

    Attributes:
        study: the study's file; "" without one.
        label: the row's label.
        seed: the recipe's seed.
        source: the row's base recipe.
        overrides: changes to it, the strongest last.
        folder: where the finished run lies.
    """

    study: str
    label: str
    seed: int
    source: RecipeSource
    overrides: tuple[str, ...]
    folder: Path

    @property
    def name(self) -> str:
        """What the run is called where it is told of."""
        return f"{self.label}, seed {self.seed}"

    @property
    def done(self) -> bool:
        """Whether the run is finished: its folder has a summary.json."""
        return _is_finished(self.folder)

    @property
    def unfinished_folder(self) -> Path:
        """Where the run lies until it is finished; it is renamed then, so no table shows half a run."""
        return self.folder.with_name(self.folder.name + UNFINISHED)

    @property
    def kept_folder(self) -> Path | None:
        """Where the run lies if it is finished, or has a checkpoint from which it goes on."""
        folder = self.folder if self.done else self.unfinished_folder
        return folder if self.done or last_checkpoint(folder) is not None else None

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Let recipe errors that the block raises name the study, the row and its base recipe."""
        row = ", ".join(filter(None, (self.study, f"row {self.label}")))
        try:
            with naming(self.source):
                yield
        except RecipeError as error:
            source = f"{row}: {error.source}" if error.source else row
            raise RecipeError(error.message, error.path, error.hint, source) from None


def plan_runs(study: Study) -> list[PlannedRun]:
    """Every run of a study, row by row and seed by seed.

    Args:
        study: one table's study.

    Raises:
        RecipeError: a row has no base recipe, or overrides of it or of the study give a seed.
    """
    planned = []
    for run in study.runs:
        base = run.base or study.base
        if base is None:
            raise RecipeError(f"runs: {run.label}: no base recipe, neither here nor in the study")
        if given := [line for line in (*study.overrides, *run.overrides) if line.partition("=")[0] == "seed"]:
            raise RecipeError(f"{given[0]}: a comparison's runs have its seeds; expected --seed, or seeds")
        for seed in study.seeds:
            folder = Path(study.folder) / f"{_stem(run.label)}{seed}"
            # The strongest comes last: the seed tells the folder apart, so nothing may override it.
            overrides = (*study.overrides, *run.overrides, f"seed={seed}")
            planned.append(PlannedRun(study.source, run.label, seed, base, overrides, folder))
    return planned


def seeds_there(folder: Path, label: str, *, finished: bool) -> set[int]:
    """The seeds with which a row has finished, or was begun as well.

    Args:
        folder: one table's.
        label: the row's.
        finished: those alone that have finished.
    """
    stem, seeds = _stem(label), set[int]()
    for path in folder.iterdir() if folder.is_dir() else ():
        seed = path.name.removesuffix(UNFINISHED).removeprefix(stem)
        if path.name.startswith(stem) and seed.isdecimal() and (_is_finished(path) or not finished):
            seeds.add(int(seed))
    return seeds


def _stem(label: str) -> str:
    """What the names of a row's runs begin with, before the seed."""
    return f"{file_name(label)}-seed"


def _is_finished(folder: Path) -> bool:
    # A run that was interrupted has a summary, too, and goes on under the name of one that is not finished.
    return folder.suffix != UNFINISHED and (folder / "summary.json").exists()
