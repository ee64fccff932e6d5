"""A study as runs to be made: planned, checked, and what is said about them beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayfed_kd.comparison.published import published_lines
from rayfed_kd.comparison.studies import Published, Study, TargetRun, in_words
from rayfed_kd.errors import RecipeError, naming, nearest
from rayfed_kd.experiment.running import UNFINISHED
from rayfed_kd.files import file_name
from rayfed_kd.recipe.loading import load_recipe, yaml_line
from rayfed_kd.recipe.schema import Recipe

# Where and how a run ran: the result is the same.
NOT_COMPARED = {"results", "placement", "checkpoint", "seed"}


@dataclass(frozen=True)
class Planned:
    """One run of a study: what, where its result lies, and whether it is there.

    Attributes:
        study: the study's file; "" without one.
        source: the row's base recipe.
    """

    study: str
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
        return self.folder.with_name(self.folder.name + UNFINISHED)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Recipe errors raised within name the study, the row and its base recipe."""
        row = ", ".join(filter(None, (self.study, f"row {self.label}")))
        try:
            with naming(self.source):
                yield
        except RecipeError as error:
            source = f"{row}: {error.source}"
            raise RecipeError(error.message, error.path, error.hint, source) from None


def check(study: Study) -> None:
    """Whether `compare` would start.

    Raises: RecipeError
    """
    with naming(study.source or None):
        _checked(study, plan(study))


def check_data(study: Study) -> None:
    """Whether the data of what is still to run is there: a later table's, before an earlier one takes hours.

    Raises: DataError
    """
    from rayfed_kd.setting.loading import find_data

    missing = next((one for one in plan(study) if not one.done), None)
    if missing is not None:  # all rows have the same data
        find_data(load_recipe(missing.source, missing.overrides))


def plan(study: Study) -> list[Planned]:
    """Every run of a study, by row and seed.

    Raises: RecipeError if a row has no recipe.
    """
    planned = []
    for run in study.runs:
        base = run.base or study.base
        if base is None:
            raise RecipeError(f"runs: {run.label}: no base recipe, neither here nor in the study")
        for seed in study.seeds:
            folder = Path(study.folder) / f"{file_name(run.label)}-seed{seed}"
            changes = (*study.overrides, *run.overrides, f"seed={seed}")
            planned.append(Planned(study.source, run.label, seed, base, changes, folder))
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
    _check_published(study)
    first: tuple[str, Mapping[str, Any]] | None = None
    recipes = []
    for one in planned:
        with one.naming():
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


def _check_published(study: Study) -> None:
    """Every printed table, metric and name that the study refers to is there."""
    printed = [line for named in study.published for line in _printed_lines(named)]
    labels = [line["label"] for line in printed]
    rows = [run.label for run in study.runs]
    for row in (row for named in study.published for row in named.rows):
        if row not in rows:
            raise RecipeError(
                f"published.rows: {row!r}: there are {', '.join(rows)}", hint=nearest(row, rows)
            )
    for run in study.runs:
        names = run.published.values() if isinstance(run.published, dict) else filter(None, [run.published])
        for name in names:
            if name not in labels:
                there = ", ".join(dict.fromkeys(labels))
                raise RecipeError(
                    f"runs: {run.label}: published: {name!r} is not printed; there are {there}",
                    hint=nearest(name, labels),
                )


def _printed_lines(named: Published) -> list[dict[str, Any]]:
    lines = published_lines(named.paper, named.table, named.where)
    metrics = {metric for line in lines for metric in line["values"]}
    if named.metric is not None and named.metric not in metrics:
        there = ", ".join(sorted(metrics))
        raise RecipeError(f"published.metric: {named.metric!r}: table {named.table} prints {there}")
    return lines


def _check_same(one: Planned, recipe: Recipe) -> None:
    """A run that is there must be the one asked for."""
    there = load_recipe(one.folder / "config.yaml").model_dump(exclude=NOT_COMPARED)
    wanted = recipe.model_dump(exclude=NOT_COMPARED)
    changed = [key for key in wanted if wanted[key] != there[key]]
    if changed:
        shown = "; ".join(f"{key} was {there[key]}, is {wanted[key]}" for key in changed)
        raise RecipeError(f"{one.folder} holds another run: {shown}. Give another --folder, or remove it")


def _notes(study: Study, rows: Mapping[str, Recipe]) -> list[str]:
    """What a reader of the table must know of its rows, from label -> recipe."""
    notes = list(_differences(rows))
    if isinstance(study.target, TargetRun):
        notes.append(f"the target is the best of {study.target.run}, seed by seed")
    elif study.target is not None:
        notes.append(f"the target is {100 * study.target:g} %")
    return notes


def _differences(rows: Mapping[str, Recipe]) -> Iterator[str]:
    """What rows are not alike in, and which: the most common value is the other rows'."""
    settings = {label: _settings(recipe) for label, recipe in rows.items()}
    for key in sorted({key for found in settings.values() for key in found}):
        labels: dict[str, list[str]] = {}
        for label, found in settings.items():
            labels.setdefault(yaml_line(found.get(key)), []).append(label)
        if len(labels) > 1:
            most = max(labels, key=lambda value: len(labels[value]))
            told = [f"{value} in {in_words(named)}" for value, named in labels.items() if value != most]
            others = "the others" if len(labels[most]) > 1 else labels[most][0]
            yield f"rows differ in {key}: {'; '.join([*told, f'{most} in {others}'])}"


def _settings(recipe: Recipe) -> dict[str, Any]:
    """What tells rows apart beside their methods, as a recipe's `section.key` -> value."""
    kept = {"model", "partition", "local", "sampling", "rounds"}
    dumped = recipe.model_dump(include=kept, exclude_none=True)
    found: dict[str, Any] = {}
    for section, value in dumped.items():
        if isinstance(value, Mapping):
            found |= {f"{section}.{key}": inner for key, inner in value.items()}
        else:
            found[section] = value
    return found


def _shown(data: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in data.items() if value is not None)
