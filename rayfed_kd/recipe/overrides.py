"""Overrides as Python has them, as `KEY=VALUE` lines: a mapping, keywords, or the lines themselves."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from rayfed_kd.errors import RecipeError, shown
from rayfed_kd.recipe.yaml_documents import yaml_line

# `key.path=value` each, the value in YAML; or key.path -> value.
Overrides = Sequence[str] | Mapping[str, Any]


def override_lines(overrides: Overrides, keywords: Mapping[str, Any] | None = None) -> list[str]:
    """Overrides in the form of a command line.

    Args:
        overrides: `key.path=value` each, or a mapping from key.path to a value.
        keywords: further ones, as a mapping; they win.

    Returns: `key.path=value` each, the value in YAML.

    Raises:
        RecipeError: the overrides are of another type, or a value is none that YAML holds.
    """
    if isinstance(overrides, str) or not isinstance(overrides, Mapping | Iterable):
        raise RecipeError(
            f"overrides: {shown(overrides)}; expected a list, as ['rounds=3'], or a mapping, as "
            "{'rounds': 3}"
        )
    lines = _lines(overrides) if isinstance(overrides, Mapping) else list(overrides)
    for line in lines:
        if not isinstance(line, str):
            raise RecipeError(f"overrides: {shown(line)}; expected a text, as 'rounds=3'")
    return [*lines, *_lines(keywords or {})]


def plain_value(value: Any) -> Any:
    """A value as YAML has it: tuples and ranges become lists, paths texts, and what is NumPy's Python's."""
    if isinstance(value, Mapping):
        return {key: plain_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain_value(inner) for inner in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    import numpy as np

    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def _lines(changes: Mapping[str, Any]) -> list[str]:
    lines = []
    for key, value in changes.items():
        try:
            lines.append(f"{key}={yaml_line(plain_value(value))}")
        except yaml.YAMLError:
            raise RecipeError(
                f"overrides: {key} = {shown(value)}: expected numbers, texts, lists and mappings"
            ) from None
    return lines
