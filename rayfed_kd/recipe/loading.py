"""A recipe read from a file or a mapping, with overrides applied."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rayfed_kd.errors import RecipeError, naming, shortened, shown
from rayfed_kd.recipe.overrides import plain_value
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.shipped import find_file, header
from rayfed_kd.recipe.validation import validate
from rayfed_kd.recipe.yaml_documents import load_yaml, read_yaml_file

# Keys within one another; a recipe has about five.
MOST_STEPS = 20
QUOTED, COMMENT = re.compile(r"'[^']*'|\"[^\"]*\""), re.compile(r"(^|\s)#")

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
            raw = plain_value(source)
        else:
            path = find_file(source, "recipe")
            raw = read_yaml_file(path, "recipe file")
            if not isinstance(raw, dict):
                raise RecipeError(f"expected keys like `method:`, got {type(raw).__name__}")
        method = _method_name(raw)
        if "runs" in raw and "method" not in raw:
            raise RecipeError("this is a study of several recipes: rayfed-kd compare runs it")
        if "space" in raw and "method" not in raw:
            raise RecipeError("this is a search space: rayfed-kd tune RECIPE --space takes it")
        before = raw
        for override in overrides:
            raw = overridden(raw, override)
        recipe = validate(Recipe, raw)
    recipe._fraction_fault = _fraction_fault(before, raw, overrides)
    # The comment is about the file's own method: under another one it would name a paper that is not run.
    if path is not None and recipe.method.name == method:
        recipe._header = header(path)
    return recipe


def _fraction_fault(before: Mapping[str, Any], after: Mapping[str, Any], overrides: Sequence[str]) -> str:
    """Why overrides may not leave the recipe's fraction to other data; "" if they do not."""
    old, new = (recipe.get("data") for recipe in (before, after))
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return ""
    fraction = new.get("fraction", 1)
    overridden = any(override.partition("=")[0] in ("data", "data.fraction") for override in overrides)
    if overridden or fraction == 1 or old.get("name") == new.get("name"):
        return ""
    return (
        f"data.name = {shown(new.get('name'))}: the recipe takes the fraction {shown(fraction)} of "
        f"{old.get('name', 'its own data')}, which was not chosen for other data; expected data.fraction=1 "
        f"beside it for all training images, or data.fraction={fraction} to keep the share"
    )


def _method_name(raw: Mapping[str, Any]) -> Any:
    method = raw.get("method")
    return method.get("name") if isinstance(method, Mapping) else None


def overridden(raw: Mapping[str, Any], override: str) -> dict[str, Any]:
    """Apply one override.

    Args:
        raw: a recipe as nested mappings; it stays as it is.
        override: `key.path=value`, the value in YAML.
    Returns: nested mappings with the value set.
    Raises: RecipeError if the override has no such form, or passes through a key that holds a value.
    """
    key, equals, text = override.partition("=")
    steps = key.split(".")
    if not equals or not all(steps) or len(steps) > MOST_STEPS:
        raise RecipeError(
            f"override {shown(override)}: expected key.path=value, as method.gamma=0.5, without blanks"
        )
    if COMMENT.search(QUOTED.sub("", text)):
        raise RecipeError(f"override {shown(override)}: in YAML # begins a comment; expected quotes")
    try:
        # One comma, blank or ~ is a text here, as no shell keeps its quotes; YAML has other uses for it.
        value = text if len(text) == 1 and not text.isalnum() else load_yaml(text)
    except RecipeError as error:
        quotes = ""
        if any(text.count(opening) > text.count(closing) for opening, closing in ("{}", "[]")):
            # A shell has split it at a blank.
            quotes = f"; a value with blanks needs quotes around the whole, as '{key}={{name: ...}}'"
        raise RecipeError(f"override {shown(override)}: the value is {error.message}{quotes}") from None
    return _with(raw, steps, value, override)


def refuse_folder(lines: Iterable[str], who: str) -> None:
    """Refuse an override of a run's folder where another choice is made for each run.

    Args:
        lines: `key.path=value` each.
        who: gives each its folder, as `a search gives each trial`.

    Raises:
        RecipeError: one of them is of the folder, or has no such form.
    """
    for line in lines:
        results = overridden({}, line).get("results")
        if isinstance(results, Mapping) and "folder" in results:
            raise RecipeError(f"override {line!r}: {who} its folder; expected --folder")


def _with(raw: Mapping[str, Any], path: Sequence[str], value: Any, override: str) -> dict[str, Any]:
    changed = dict(raw)
    if len(path) == 1:
        changed[path[0]] = value
        return changed
    inner = changed.get(path[0]) or {}
    if not isinstance(inner, Mapping):
        raise RecipeError(
            f"override {shown(override)}: {shortened(path[0])} is {shown(inner)}, it has no keys below it"
        )
    changed[path[0]] = _with(inner, path[1:], value, override)
    return changed
