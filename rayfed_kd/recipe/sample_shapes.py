"""What one sample of a data set is: the shape that data declare and models are built for.

A plain tuple is the shape of an image, (channels, height, width), or of numbers, (d,). A text and a row with
categories say more than their shape, and so have a type of their own; both are tuples as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
