"""A recipe read from a file or a mapping, with overrides applied."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rayfed_kd.errors import RecipeError, naming
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.shipped import find_file, header
from rayfed_kd.recipe.validation import validate


class _Loader(yaml.SafeLoader):
    """YAML 1.2's floats: PyYAML reads 1e-4, which has no dot, as text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"),
    list("-+0123456789."),
)


def load_yaml(text: str) -> Any:
    """The value of a YAML text; builds plain values only."""
    return yaml.load(text, Loader=_Loader)


def yaml_line(value: Any) -> str:
    """A plain value as a recipe has it in one line, as `{name: sgd, lr: 0.1}`."""
    text = yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=float("inf"))
    return text.strip()[1:-1]


RecipeSource = str | Path | Mapping[str, Any]


def load_recipe(source: RecipeSource, overrides: Sequence[str] = ()) -> Recipe:
    """Reads a recipe from a YAML file or a mapping, applies overrides, checks its frame.

    Args:
        source: path of a YAML file, the name of a recipe that comes with the package, or the recipe as nested
            mappings.
        overrides: `key.path=value` each, the value in YAML; later ones win.
    Raises: RecipeError
    """
    with naming(source):
        path: Path | None = None
        if isinstance(source, Mapping):
            raw = dict(source)
        else:
            path = find_file(source, "recipe")
            raw = _read_yaml(path)
        if "runs" in raw and "method" not in raw:
            raise RecipeError("this is a study of several recipes: rayfed-kd compare runs it")
        for override in overrides:
            raw = overridden(raw, override)
        recipe = validate(Recipe, raw)
    recipe._header = "" if path is None else header(path)
    return recipe


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        raw = load_yaml(path.read_text(encoding="utf8"))
    except yaml.YAMLError as error:
        raise RecipeError(f"not YAML: {error}") from None
    if not isinstance(raw, dict):
        raise RecipeError(f"expected keys like `method:`, got {type(raw).__name__}")
    return raw


def overridden(raw: Mapping[str, Any], override: str) -> dict[str, Any]:
    """Apply one override.

    Args:
        raw: a recipe as nested mappings; it stays as it is.
        override: `key.path=value`, the value in YAML.
    Returns: nested mappings with the value set.
    Raises: RecipeError if the override has no such form, or passes through a key that holds a value.
    """
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise RecipeError(f"override {override!r}: expected key.path=value, as method.gamma=0.5")
    try:
        value = load_yaml(text)
    except yaml.YAMLError:
        raise RecipeError(f"override {override!r}: the value is not YAML") from None
    return _with(raw, key.split("."), value, override)


def _with(raw: Mapping[str, Any], path: Sequence[str], value: Any, override: str) -> dict[str, Any]:
    changed = dict(raw)
    if len(path) == 1:
        changed[path[0]] = value
        return changed
    inner = changed.get(path[0]) or {}
    if not isinstance(inner, Mapping):
        raise RecipeError(f"override {override!r}: {path[0]} is {inner!r}, it has no keys below it")
    changed[path[0]] = _with(inner, path[1:], value, override)
    return changed
