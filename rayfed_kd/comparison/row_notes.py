"""What a reader must know of a table's rows: in which settings they differ, and what the target is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rayfed_kd.comparison.studies import Study, TargetRun, in_words
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.yaml_documents import yaml_line
from rayfed_kd.results.schemas import is_score

# The sections of a recipe in which rows are expected to be alike; the method tells them apart.
COMMON_SECTIONS = {"model", "partition", "local", "sampling", "rounds"}


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
        in_percent = study.headline is None or not is_score(study.headline)
        notes.append(f"the target is {f'{100 * study.target:g} %' if in_percent else f'{study.target:g}'}")
    return notes


def _row_differences(recipes: Mapping[str, Recipe]) -> Iterator[str]:
    """A sentence per setting in which rows differ; the most common value is that of `the others`."""
    settings = {label: _common_settings(recipe) for label, recipe in recipes.items()}
    for key in sorted({key for row in settings.values() for key in row}):
        labels_by_value: dict[str, list[str]] = {}
        for label, row in settings.items():
            labels_by_value.setdefault(yaml_line(row.get(key)), []).append(label)
        if len(labels_by_value) > 1:
            usual = max(labels_by_value, key=lambda value: len(labels_by_value[value]))
            others = labels_by_value.pop(usual)
            parts = [f"{value} in {in_words(labels)}" for value, labels in labels_by_value.items()]
            parts.append(f"{usual} in {'the others' if len(others) > 1 else others[0]}")
            yield f"rows differ in {key}: {'; '.join(parts)}"


def _common_settings(recipe: Recipe) -> dict[str, Any]:
    """The recipe's `section.key` -> value, of `COMMON_SECTIONS`."""
    settings: dict[str, Any] = {}
    for section, value in recipe.model_dump(include=COMMON_SECTIONS, exclude_none=True).items():
        if isinstance(value, Mapping):
            settings |= {f"{section}.{key}": inner for key, inner in value.items()}
        else:
            settings[section] = value
    return settings
