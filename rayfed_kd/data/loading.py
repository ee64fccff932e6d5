"""From a recipe's `data` to a memory-mapped data set."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rayfed_kd.data import SOURCES
from rayfed_kd.data.cache import load_cached
from rayfed_kd.data.dataset import Dataset, Source
from rayfed_kd.errors import RecipeError
from rayfed_kd.files.own_modules import own_files
from rayfed_kd.recipe.registry import blaming
from rayfed_kd.recipe.strict import Named


def find_source(name: str, folder: Path | None, options: Mapping[str, Any]) -> Source:
    """The source behind a recipe's `data`, its files found.

    Args:
        folder: where to look; None: $RAYFED_KD_DATA, else ./data.
    Raises: RecipeError for unknown names or options, DataError if files are missing.
    """
    bound = SOURCES.bound(Named(name=name, **options), "data")
    where = Path(os.environ.get("RAYFED_KD_DATA", "data")).expanduser() if folder is None else folder
    try:
        with blaming(f"data.name: {name}"):
            source = bound.found(where, **bound.arguments)
    except RecipeError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        message = f"{error.message}; it looked in {where.resolve()}, which data.folder or RAYFED_KD_DATA sets"
        raise RecipeError(message) from None
    if not isinstance(source, Source):
        raise RecipeError(
            f"data.name: {name} returned a {type(source).__name__}, expected a rayfed_kd.data.dataset.Source"
        )
    # A user's code, and what it imports, may change what it makes of the same files.
    module = name.partition(":")[0]
    code = set() if name in SOURCES else {Path(inspect.getfile(bound.found)), *own_files([module]).values()}
    return replace(
        source, files=(*source.files, *sorted(code)), settings={**bound.arguments, **source.settings}
    )


def load_dataset(
    name: str, folder: Path | None = None, fraction: float = 1.0, options: Mapping[str, Any] | None = None
) -> Dataset:
    """A recipe's data, decoded once and memory-mapped.

    Args:
        folder: where the files lie; None: $RAYFED_KD_DATA, else ./data.
        fraction: share of each class's training samples that is kept, at least one.
        options: the source's own.
    Raises: RecipeError, DataError
    """
    source = find_source(name, folder, options or {})
    return load_cached(name, source, fraction)
