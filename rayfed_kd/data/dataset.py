"""What a data set is: memory-mapped arrays, the same in every process. No torch here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import psutil

from rayfed_kd.errors import DataError
from rayfed_kd.recipe.sample_shapes import Shape

Array = np.ndarray[Any, Any]
GIGABYTE = 2**30
# ImageNet has 21,841. A larger label is a slip, and counts by class would fill the memory.
MOST_CLASSES = 100_000


@dataclass(frozen=True)
class Split:
    """Samples and labels.

    Attributes:
        images: [n, c, h, w] uint8 pixels, [n, ...] float32 numbers that are used as they are, or [n, length]
            int64 tokens.
        labels: [n] int64.
    """

    images: Array
    labels: Array

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class RawDataset:
    """A decoded data set.

    Attributes:
        train, test: test is the official test set, None where there is none.
        class_names: one per class.
        mean, std: per channel, of pixels / 255; None: computed from the training pixels.
        writers: [n] int64, the natural client of each training sample, or None.
        columns: name -> [n] int64, what else is known of each training sample, as its site or its year: a
            number for each distinct value. The partition `by_column` uses it.
        held_out: [n] bool, which training samples their writer keeps for its own test, for data that come
            divided; None for all other data. The partition `from_source` uses it.
        sample: what one sample is, where its array does not say it: a `TextShape` or a `RowShape`. None:
            images or numbers.
        notes: what the user should know of these data, a sentence each: a run's first lines have them.
    """

    train: Split
    test: Split | None
    class_names: tuple[str, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    writers: Array | None = None
    columns: Mapping[str, Array] = field(default_factory=dict)
    held_out: Array | None = None
    sample: Shape | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """Where a data set comes from.

    Attributes:
        files: what `decode` reads; their content decides whether a cache entry still holds.
        settings: what else changes the result, beside the options of the function, which count anyway.
        decode: makes the data set; slow, called only if it is not in the cache.
    """

    files: Sequence[Path]
    settings: Mapping[str, Any]
    decode: Callable[[], RawDataset]


@dataclass(frozen=True)
class Dataset(RawDataset):
    """A data set, memory-mapped from its cache entry.

    Attributes:
        mean, std: of the recipe's source, or computed.
        name, folder: of the source, and of the cache entry.
        whole: number of training samples before `data.fraction`.
    """

    mean: tuple[float, ...] = field(kw_only=True)
    std: tuple[float, ...] = field(kw_only=True)
    name: str = field(kw_only=True)
    folder: Path = field(kw_only=True)
    whole: int = field(kw_only=True)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def shape(self) -> Shape:
        """Shape of one sample: (channels, height, width) of images; a `TextShape` of texts."""
        return tuple(self.train.images.shape[1:]) if self.sample is None else self.sample


OfRows = TypeVar("OfRows")


def of_rows(whole: OfRows, chosen: Array) -> OfRows:
    """The same of some samples: the arrays that have a row for each, and its columns.

    Args:
        whole: a dataclass with such arrays, and `columns` of them.
        chosen: [m] indices.
    """
    arrays = {name: value[chosen] for name, value in vars(whole).items() if isinstance(value, np.ndarray)}
    columns = {name: values[chosen] for name, values in vars(whole)["columns"].items()}
    chosen_rows: OfRows = replace(cast(Any, whole), **arrays, columns=columns)
    return chosen_rows


def check_size(what: str, shape: Sequence[int], itemsize: int) -> None:
    """Refuse an array that this machine's memory cannot hold, before it is made.

    Args:
        what: what the array holds, for the message.
        shape: of the array.
        itemsize: bytes of an element.
    Raises: DataError with both sizes.
    """
    needed, memory = math.prod(shape) * itemsize, psutil.virtual_memory().total
    if needed > memory:
        sides = " x ".join(map(str, shape))
        raise DataError(
            f"{what}: {sides} take {needed / GIGABYTE:.3g} GiB, this machine has {memory / GIGABYTE:.3g} GiB"
        )


def of_each_class(labels: Array, fraction: float, stream: np.random.Generator, least: int = 0) -> Array:
    """Draw a share of each class's samples.

    Args:
        labels: [n] int64.
        fraction: at most 1.
        stream: decides which.
        least: samples of each class that are drawn at least.
    Returns: ascending indices, [m] int64: floor(fraction n_c) of each class of n_c samples, or `least`.
    """
    chosen = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        # 1e-9: 0.1 * 30 is 2.9999999999999996 in floats, and 3 samples are meant.
        chosen.append(stream.permutation(members)[: max(least, int(fraction * len(members) + 1e-9))])
    return np.sort(np.concatenate(chosen))
