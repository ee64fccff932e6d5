"""Comparisons: several recipes with several seeds, one table, the paper's numbers beside.

A study file:

    title: "CIFAR-10, N 50, beta 0.1"
    base: configs/kdia/cifar10.yaml       # beside this file or below the current folder
    overrides: [rounds=50]
    seeds: [1, 2]
    folder: runs/kdia-cifar10
    runs:
      - {label: KDIA, overrides: [method.tau=2.0]}
      - {label: FedAvg, base: configs/fedavg/cifar10.yaml}
      - {label: FedAvg under PAF, overrides: ["attack={name: paf}"], against: FedAvg}   # relative change
    models: {student: S, teacher: T}      # evaluated models shown, and how they are called
    last: 10                              # evaluated rounds in "mean of the last"
    headline: ua                          # the metric of best, "mean of the last" and target;
                                          # default: official test, AMP or UA, the first that there is
    target: {run: FedAvg}                 # rounds and bytes to this run's best; or a number in [0, 1]
    published:
      - {paper: kdia, table: "2", where: {dataset: CIFAR-10, beta: 0.1}, differs: "N 50 for 100"}

Runs share a seed's partition and initial weights wherever their data, partition and model are the same:
both are functions of the recipe and the seed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rayfed_kd.config import Recipe, load_recipe, load_yaml, validate
from rayfed_kd.errors import RecipeError
from rayfed_kd.published import published_lines

if TYPE_CHECKING:
    from rayfed_kd.results.comparison import Comparison


# Where and how a run ran: the result is the same.
NOT_COMPARED = {"results", "placement", "checkpoint", "seed"}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StudyRun(_Strict):
    """One row's recipe."""

    label: str
    base: str | None = None
    overrides: list[str] = []
    against: str | None = None


class Published(_Strict):
    """A paper's table, or those of its rows that `where` names."""

    paper: str
    table: str
    where: dict[str, Any] = {}
    differs: str = ""


class TargetRun(_Strict):
    """The accuracy to reach: the best of this run, seed by seed."""

    run: str


class Study(_Strict):
    """A study file."""

    title: str = ""
    base: str | None = None
    overrides: list[str] = []
    seeds: list[int] = Field([1], min_length=1)
    folder: str
    runs: list[StudyRun] = Field(min_length=1)
    models: dict[str, str] = {}
    last: int = Field(10, ge=1)
    headline: Literal["amp", "fm", "wlp", "ua", "server_accuracy"] | None = None
    target: Annotated[float, Field(ge=0, le=1)] | TargetRun | None = None
    published: list[Published] = []


@dataclass(frozen=True)
class Planned:
    """One run of a study: what, where its result lies, and whether it is there."""

    label: str
    seed: int
    source: str
    overrides: tuple[str, ...]
    folder: Path

    @property
    def done(self) -> bool:
        """Whether the run was finished."""
        return (self.folder / "summary.json").exists()

    @property
    def aside(self) -> Path:
        """Where it runs: renamed when finished, so a run cut off is gone on with, never half believed."""
        return self.folder.with_name(self.folder.name + ".running")


def compare(
    study: Study,
    overrides: Sequence[str] = (),
    *,
    run: Callable[[Sequence[Planned]], None],
    tell: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Runs what is missing of a study and compares.

    Args:
        study: what to run.
        overrides: for every recipe.
        run: runs those given, and renames each run's folder from `aside` when it is finished.
        tell: called with a line about what is there already.
    Raises: RecipeError if the study or one of its recipes is bad, before the first run; RunError.
    """
    planned = plan(study, overrides)
    recipes = _checked(study, planned)
    missing = [one for one in planned if not one.done]
    if len(missing) < len(planned):
        tell(f"{len(planned) - len(missing)} of {len(planned)} runs are there in {study.folder}")
    if missing:
        run(missing)
    from rayfed_kd.results.comparison import Comparison

    return Comparison.read(study, planned, _notes(study, recipes))


def read_study(path: Path) -> Study:
    """The study file.

    Raises: RecipeError
    """
    if not path.is_file():
        raise RecipeError(f"{path}: no such study file")
    return validate(Study, load_yaml(path.read_text(encoding="utf8")))


def study_of(sources: Sequence[str], *, seeds: int | None = None, folder: str | None = None) -> Study:
    """What a command line names: one study file, or recipes, each a row.

    Args:
        sources: files.
        seeds: run seeds 1 to this many instead of the study's.
        folder: in place of the study's.
    Raises: RecipeError
    """
    if len(sources) == 1 and "runs" in (_raw(sources[0]) or {}):
        study = read_study(Path(sources[0]))
    else:
        names = [_label(source, sources) for source in sources]
        runs = [{"label": name, "base": source} for name, source in zip(names, sources, strict=True)]
        study = Study.model_validate({"runs": runs, "folder": f"runs/compare-{'-'.join(names)}"})
    changes: dict[str, Any] = {} if seeds is None else {"seeds": list(range(1, seeds + 1))}
    return study.model_copy(update=changes | ({} if folder is None else {"folder": folder}))


def _raw(source: str) -> Any:
    path = Path(source)
    if not path.is_file():
        raise RecipeError(f"{source}: no such file")
    return load_yaml(path.read_text(encoding="utf8"))


def _label(source: str, sources: Sequence[str]) -> str:
    """A file's name without its ending; with its folder's where two files are called the same."""
    path = Path(source)
    same = [other for other in sources if Path(other).stem == path.stem]
    return path.stem if len(same) == 1 else f"{path.parent.name}-{path.stem}"


def plan(study: Study, overrides: Sequence[str] = ()) -> list[Planned]:
    """Every run of a study, by row and seed.

    Raises: RecipeError if a row has no recipe, or an override sets a run's folder.
    """
    asked = next((change for change in overrides if change.startswith("results.")), None)
    if asked is not None:
        raise RecipeError(f"override {asked!r}: a comparison gives each run its folder; expected --folder")
    planned = []
    for run in study.runs:
        base = run.base or study.base
        if base is None:
            raise RecipeError(f"runs: {run.label}: no base recipe, neither here nor in the study")
        for seed in study.seeds:
            folder = Path(study.folder) / f"{re.sub(r'[^0-9A-Za-z._-]+', '-', run.label)}-seed{seed}"
            changes = (*study.overrides, *run.overrides, *overrides, f"seed={seed}")
            planned.append(Planned(run.label, seed, base, changes, folder))
    return planned


def _checked(study: Study, planned: Sequence[Planned]) -> list[Recipe]:
    """Every recipe is read, and every published table looked up, before the first run."""
    labels = [run.label for run in study.runs]
    if len({one.folder for one in planned}) < len(planned):
        raise RecipeError(
            f"runs: {', '.join(labels)}: two rows have the same label; a study file gives each its own"
        )
    if isinstance(study.target, TargetRun) and study.target.run not in labels:
        raise RecipeError(f"target.run: {study.target.run!r} is no row; there are {labels}")
    for run in study.runs:
        if run.against is not None and run.against not in labels:
            raise RecipeError(f"runs: {run.label}: against: {run.against!r} is no row; there are {labels}")
    for named in study.published:
        published_lines(named.paper, named.table, named.where)
    first: tuple[str, Mapping[str, Any]] | None = None
    recipes = []
    for one in planned:
        recipe = load_recipe(one.source, [*one.overrides, f"results.folder={one.aside}"])
        data = recipe.data.model_dump(exclude={"augment", "pixels"})
        if first is None:
            first = (one.label, data)
        elif data != first[1]:
            raise RecipeError(
                f"runs: {first[0]} has data {_shown(first[1])}, {one.label} has {_shown(data)}; "
                "expected the same data and classes in every row"
            )
        recipes.append(recipe)
        if one.done:
            _check_same(one, recipe)
    return recipes


def _check_same(one: Planned, recipe: Recipe) -> None:
    """A run that is there must be the one asked for."""
    there = load_recipe(one.folder / "config.yaml").model_dump(exclude=NOT_COMPARED)
    wanted = recipe.model_dump(exclude=NOT_COMPARED)
    changed = [key for key in wanted if wanted[key] != there[key]]
    if changed:
        shown = "; ".join(f"{key} was {there[key]}, is {wanted[key]}" for key in changed)
        raise RecipeError(f"{one.folder} holds another run: {shown}. Give another --folder, or remove it")


def _notes(study: Study, recipes: Sequence[Recipe]) -> list[str]:
    """What a reader of the table must know of its rows."""
    notes = []
    for key in ("model", "partition", "local", "sampling", "rounds"):
        values = [getattr(recipe, key) for recipe in recipes]
        if any(value != values[0] for value in values):
            notes.append(f"rows differ in {key}")
    if isinstance(study.target, TargetRun):
        notes.append(f"the target is the best of {study.target.run}, seed by seed")
    elif study.target is not None:
        notes.append(f"the target is {100 * study.target:g} %")
    return notes


def _shown(data: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in data.items() if value is not None)
