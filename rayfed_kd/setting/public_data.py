"""Whether a recipe has the public samples that its method needs."""

from __future__ import annotations

from typing import Any

from rayfed_kd.errors import RecipeError
from rayfed_kd.protocol import Method
from rayfed_kd.recipe.schema import Recipe


def check_public(recipe: Recipe, method: Method[Any, Any]) -> None:
    """Refuse a recipe without public samples, or without their labels, where the method needs them.

    Raises: RecipeError
    """
    needs, public, name = method.public, recipe.partition.public, recipe.method.name
    if needs == "none":
        return
    if public is None:
        kind = "labelled public" if needs == "labels" else "public"
        raise RecipeError(
            f"partition.public is missing: {name} needs {kind} samples, as partition.public={{fraction: 0.5}}"
        )
    if needs == "labels" and not public.labels:
        raise RecipeError(
            f"partition.public.labels = false: {name} needs the labels of public samples with these options; "
            f"expected true, or options with which it does not: `rayfed-kd methods {name}` lists them"
        )
