"""What one sample of a data set is: the shape that data declare and models are built for.

A plain tuple is the shape of an image, (channels, height, width), or of numbers, (d,). A text and a row with
categories say more than their shape, and so have a type of their own; both are tuples as well. Which of them
a model of ours takes is checked when a recipe names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rayfed_kd.errors import RecipeError

Shape = tuple[int, ...]


class TextShape(tuple[int]):
    """The shape of a text: (length,), as token numbers, int64; 0 is padding.

    Args:
        length: tokens of every text; shorter ones are padded at their end.
        vocabulary: number of token numbers, padding included.
    """

    vocabulary: int

    def __new__(cls, length: int, vocabulary: int) -> TextShape:
        """A tuple of one number that knows the vocabulary."""
        shape = super().__new__(cls, (length,))
        shape.vocabulary = vocabulary
        return shape

    def __getnewargs__(self) -> tuple[Any, ...]:
        """What a copy and a pickle are made from."""
        return self[0], self.vocabulary


class RowShape(tuple[int]):
    """The shape of a row with categories as codes: (numbers + categories,), float32.

    Args:
        numbers: how many columns of numbers come first.
        categories: of each further column, its number of codes: whole numbers from 0.
    """

    numbers: int
    categories: tuple[int, ...]

    def __new__(cls, numbers: int, categories: Sequence[int]) -> RowShape:
        """A tuple of one number that knows its columns."""
        shape = super().__new__(cls, (numbers + len(categories),))
        shape.numbers, shape.categories = numbers, tuple(categories)
        return shape

    def __getnewargs__(self) -> tuple[Any, ...]:
        """What a copy and a pickle are made from."""
        return self.numbers, self.categories


def shown_sides(shape: Sequence[int]) -> str:
    """A shape for messages, such as "3x32x32"."""
    return "x".join(map(str, shape))


def is_image(shape: Shape) -> bool:
    """Whether samples of this shape are images, (channels, height, width)."""
    return len(shape) == 3


def samples_called(shape: Shape) -> str:
    """What samples of this shape are, for messages: "images", "text", "rows of a table" or "numbers"."""
    if isinstance(shape, TextShape):
        return "text"
    if isinstance(shape, RowShape):
        return "rows of a table"
    return "images" if is_image(shape) else "numbers"


def shape_details(shape: Shape) -> dict[str, Any]:
    """What a shape says beside its numbers, as plain values; empty for a plain shape."""
    if isinstance(shape, TextShape):
        return {"vocabulary": shape.vocabulary}
    if isinstance(shape, RowShape):
        return {"numbers": shape.numbers, "categories": list(shape.categories)}
    return {}


def shape_of(sizes: Sequence[int], description: Mapping[str, Any]) -> Shape:
    """The shape that `shape_details` was asked about.

    Args:
        sizes: its numbers.
        description: what `shape_details` gave.
    """
    if "vocabulary" in description:
        return TextShape(sizes[0], description["vocabulary"])
    if "categories" in description:
        return RowShape(description["numbers"], description["categories"])
    return tuple(sizes)


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
        raise _refused(model, "images (channels, height, width)", shape, path)
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
        raise _refused(model, "images or numbers", shape, path)
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
        raise _refused(model, "text", shape)
    return shape


def row_shape(shape: Shape, model: str) -> RowShape:
    """Check that samples are rows whose categories are codes, which a model takes.

    Args:
        shape: of one sample.
        model: its name, for the message.
    Raises: RecipeError if they are none.
    """
    if not isinstance(shape, RowShape):
        raise _refused(model, "rows of a table with data.categories=codes", shape)
    return shape


def _refused(model: str, takes: str, shape: Shape, path: str = "model.name") -> RecipeError:
    data = f"{samples_called(shape)} {tuple(shape)}"
    other = "another, as mlp for numbers, row_mlp for codes, word_bag for text"
    return RecipeError(f"{model} takes {takes}, this data has {data}; expected {other}", path=path)
