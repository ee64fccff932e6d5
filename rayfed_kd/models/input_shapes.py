"""Which samples a model of ours can take: checked when a recipe names it."""

from __future__ import annotations

from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.sample_shapes import RowShape, Shape, TextShape, is_image, samples_called


def image_shape(shape: Shape, model: str, smallest: int, path: str = "model.name") -> tuple[int, int, int]:
    """Check that a model can take images of this shape.

    Args:
        shape: of one sample.
        model: its name, for the message.
        smallest: pixels that each side needs at least.
        path: where in the recipe the model stands.
    Returns: (channels, height, width).
    Raises: RecipeError if these are no images, or too small ones.
    """
    if not is_image(shape):
        raise RecipeError(
            f"{model} takes images (channels, height, width), this data has {_shown(shape)}", path=path
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise RecipeError(
            f"{model} takes images of {smallest}x{smallest} or more, this data has {height}x{width}",
            path=path,
        )
    return channels, height, width


def number_shape(shape: Shape, model: str, path: str = "model.name") -> Shape:
    """Check that a model of numbers can take samples of this shape: images or numbers.

    Args:
        shape: of one sample.
        model: its name, for the message.
        path: where in the recipe the model stands.
    Returns: the same shape.
    Raises: RecipeError if these are texts, or rows whose categories are codes.
    """
    if isinstance(shape, TextShape):
        raise RecipeError(f"{model} takes images or numbers, this data has text", path=path)
    if isinstance(shape, RowShape):
        raise RecipeError(
            f"{model} takes images or numbers, this data has categories as codes; data.categories=one_hot "
            "makes numbers of them",
            path=path,
        )
    return shape


def text_shape(shape: Shape, model: str) -> TextShape:
    """Check that samples are texts, which a model takes.

    Args:
        shape: of one sample.
        model: its name, for the message.
    Raises: RecipeError if they are no texts.
    """
    if not isinstance(shape, TextShape):
        raise RecipeError(f"{model} takes text, this data has {_shown(shape)}", path="model.name")
    return shape


def row_shape(shape: Shape, model: str) -> RowShape:
    """Check that samples are rows whose categories are codes, which a model takes.

    Args:
        shape: of one sample.
        model: its name, for the message.
    Raises: RecipeError if they are none.
    """
    if not isinstance(shape, RowShape):
        raise RecipeError(
            f"{model} takes rows of a table with data.categories=codes, this data has {_shown(shape)}",
            path="model.name",
        )
    return shape


def _shown(shape: Shape) -> str:
    return f"{samples_called(shape)} {tuple(shape)}"
