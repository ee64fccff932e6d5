"""Groups of numbers that share a scale: a tensor each, or an output channel each."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from rayfed_kd.protocol import TravellingPart

By = Annotated[Literal["tensor", "channel"], Field(description="which numbers share a scale")]
Sizes = np.ndarray[Any, np.dtype[np.int64]]


def group_sizes(part: TravellingPart, by: By) -> Sizes:
    """How many numbers each group has, in the order of the array.

    Args:
        by: tensor: each tensor of a vector, or the whole array where its tensors are not known. channel: each
            index of a tensor's first axis; a tensor of one axis is one group.
    """
    shapes = [part.shape] if part.layout is None else [tensor.shape for tensor, *_ in part.layout.placed()]
    sizes = []
    for shape in shapes:
        size = int(np.prod(shape, dtype=np.int64))
        rows = shape[0] if by == "channel" and len(shape) > 1 else 1
        sizes += [size // rows] * rows
    return np.array(sizes, np.int64)


def group_starts(sizes: Sizes) -> Sizes:
    """The first index of each group, for `reduceat`."""
    return np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
