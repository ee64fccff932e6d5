"""What a reader must know of a table's rows: how they differ, what the target is, what a paper shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.differences import Row
from rayfed_kd.comparison.studies import Paper, Study, TargetRun
from rayfed_kd.errors import in_words
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.yaml_documents import yaml_line
from rayfed_kd.results.names import metric_scale, metric_unit

OWN = {"method", "seed", "results"}
# Sections that a row has or has not: one sentence says of them more than one for each key.
WHOLE = {"client_models", "schedule", "clock", "codec", "attack", "privacy"}


def with_stop_as_target(study: Study, recipes: Sequence[Recipe]) -> Study:
    """The study, whose target, if it names none, is the value at which all its recipes stop.

    A study with another headline than the metric that they stop by stays as it is.

    Args:
        study: one table's study.
        recipes: of all its runs.
    """
    stops = {(recipe.stop.metric, recipe.stop.at) if recipe.stop else (None, None) for recipe in recipes}
    (metric, at), *others = stops
    if others or at is None or study.target is not None or study.headline not in (None, metric):
        return study
    return study.model_copy(update={"headline": metric, "target": at})


def row_notes(study: Study, recipes: Mapping[str, Recipe]) -> list[str]:
    """The sentences that stand beneath the table, without the final stop.

    Args:
        study: one table's study.
        recipes: label -> the row's recipe.
    """
    notes = list(_row_differences(recipes))
    if isinstance(study.target, TargetRun):
        notes.append(f"the target is the best of {study.target.run}, seed by seed")
    elif study.target is not None:
        headline = study.headline or "amp"
        notes.append(f"the target is {metric_scale(headline) * study.target:g}{metric_unit(headline)}")
    return notes


def _row_differences(recipes: Mapping[str, Recipe]) -> Iterator[str]:
    """A sentence per setting in which rows differ, options of methods that several rows have at the end."""
    yield from _differences("rows", {label: flat_settings(recipe) for label, recipe in recipes.items()})
    if len(set(map(_division, recipes.values()))) > 1:
        yield "rows with another partition have other samples at their clients, with the same seed, too"
    by_method: dict[str, dict[str, Mapping[str, Any]]] = {}
    for label, recipe in recipes.items():
        options = {f"method.{key}": value for key, value in recipe.method.model_dump().items()}
        by_method.setdefault(recipe.method.name, {})[label] = options
    for name, rows in by_method.items():
        # An option that a recipe leaves out has its default, which may be another value than null.
        yield from _differences("rows" if len(by_method) == 1 else f"rows of {name}", rows, "the default")


def _differences(who: str, rows: Mapping[str, Mapping[str, Any]], absent: str = "null") -> Iterator[str]:
    """A sentence per key in which rows differ; the most common value is that of `the others`.

    Args:
        absent: what is said of a row that does not have the key.
    """
    for key in sorted({key for row in rows.values() for key in row}):
        labels_by_value: dict[str, list[str]] = {}
        for label, row in rows.items():
            labels_by_value.setdefault(yaml_line(row[key]) if key in row else absent, []).append(label)
        if len(labels_by_value) > 1:
            usual = max(labels_by_value, key=lambda value: len(labels_by_value[value]))
            others = labels_by_value.pop(usual)
            parts = [f"{value} in {in_words(labels)}" for value, labels in labels_by_value.items()]
            parts.append(f"{usual} in {'the others' if len(others) > 1 else others[0]}")
            yield f"{who} differ in {key}: {'; '.join(parts)}"


def _division(recipe: Recipe) -> str:
    """What decides, beside the seed, which samples a client has: not the use of public ones."""
    public = recipe.partition.public
    apart = None if public is None or not public.apart else [public.count, public.fraction]
    return yaml_line({**recipe.partition.model_dump(), "public": apart})


def flat_settings(recipe: Recipe) -> dict[str, Any]:
    """What a recipe says beside its method: `section.key`, or a whole section, -> value.

    Seed and folder are not among it: they are each run's own.

    Args:
        recipe: a row's.

    Returns: values as the recipe writes them; of a section that is shown whole only what is no default.
    """
    settings: dict[str, Any] = {}
    for section, value in recipe.model_dump(exclude=OWN | WHOLE, exclude_none=True).items():
        if isinstance(value, Mapping):
            settings |= {f"{section}.{key}": inner for key, inner in value.items()}
        else:
            settings[section] = value
    sections = recipe.model_dump(include=WHOLE, exclude_defaults=True, exclude_none=True)
    return settings | {section: sections.get(section) for section in WHOLE if sections.get(section)}


def paper_rows(comparison: Comparison, paper: Paper) -> list[Row]:
    """The rows that a study has in a paper, in the order in which it names them."""
    labels = paper.rows or comparison.study.labels
    return [row for label in labels for row in comparison.rows if row[0] == label]


def paper_columns(comparison: Comparison, paper: Paper) -> list[str]:
    """The columns that a study has in a paper, of which its rows have values."""
    rows, columns = paper_rows(comparison, paper), paper.columns or [comparison.headline, "difference"]
    known = {key[3] for key in comparison.curves if key[:2] in rows}
    known |= {"published"} if comparison.printed_values() else set()
    known |= {"difference"} if any(map(comparison.difference, rows)) else set()
    return [column for column in columns if column in known]


def paper_notes(comparison: Comparison) -> list[str]:
    """Which columns the study wants in a paper, and none of its rows there has."""
    paper = comparison.study.paper
    missing = [] if paper is None else sorted(set(paper.columns) - {*paper_columns(comparison, paper)})
    if not missing:
        return []
    return [f"a paper's table has no column {in_words(missing)}: none of its rows has it"]
