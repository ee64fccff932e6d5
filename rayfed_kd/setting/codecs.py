"""The message codec that a recipe names."""

from __future__ import annotations

from collections.abc import Mapping

from rayfed_kd.protocol.message_codec import Codec
from rayfed_kd.recipe.registry import load_class, locate, options_model
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.validation import validate

CODECS: Mapping[str, str] = {"none": "rayfed_kd.protocol.message_codec:Codec"}


def make_codec(recipe: Recipe) -> Codec | None:
    """The recipe's codec with its options; None for `none`, so that nothing is spent on it.

    Raises: RecipeError if its name is unknown, it is no codec, or an option is bad.
    """
    named = recipe.codec
    kind = load_class(locate(named.name, CODECS, "codec.name"), {}, Codec, "codec.name")
    options = validate(options_model(kind.__init__), named.options, "codec", named.name)
    if kind is Codec:
        return None
    return kind(**{name: getattr(options, name) for name in type(options).model_fields})
