"""Data of a user's own as arrays of an .npz file."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from rayfed_kd.data.dataset import Array, RawDataset, Source, Split
from rayfed_kd.data.sources.classes import Labels, number_classes
from rayfed_kd.data.sources.columns import ROUNDING
from rayfed_kd.data.sources.own_images import SplitSeed, TestFraction, own_file, with_test
from rayfed_kd.errors import DataError, RecipeError, did_you_mean, shortened, shown
from rayfed_kd.recipe.roles import data_source

GREY_OR_COLOUR = (1, 3)
MOST_LOST = 1e-3  # by rounding to float32, over the distance between a column's ends


@data_source
def npz(
    folder: Path,
    *,
    file: Annotated[str, Field(min_length=1, description="the .npz file, below the folder or absolute")],
    images: Annotated[str, Field(description="the key of the training samples")] = "x_train",
    labels: Annotated[str, Field(description="the key of their labels")] = "y_train",
    test_images: Annotated[
        str | None, Field(description="the key of the official test set's samples; null: none")
    ] = "x_test",
    test_labels: Annotated[str | None, Field(description="the key of their labels")] = "y_test",
    channels: Annotated[
        Literal["auto", "first", "last"],
        Field(description="where images have theirs; auto: where one or three of them are"),
    ] = "auto",
    test_fraction: TestFraction = 0.0,
    split_seed: SplitSeed = 0,
) -> Source:
    """Arrays in a NumPy file: uint8 pixels [n, h, w] or with channels, or numbers [n, ...], and labels [n].

    Without arrays of the two default test keys there is no official test set.
    """
    path = own_file(folder, file, "data.file")
    if (test_images is None) != (test_labels is None):
        raise RecipeError("test_images and test_labels: give both, or null for both", path="data.test_images")

    def decode() -> RawDataset:
        with _opened(path) as arrays:
            keys = [(images, labels)]
            default = (test_images, test_labels) == ("x_test", "y_test")
            if test_images and test_labels and (not default or {"x_test", "y_test"} & set(arrays)):
                keys.append((test_images, test_labels))
            every = [_part_of(path, arrays, *pair, channels) for pair in keys]
            idle = [key for key in arrays if not any(key in pair for pair in keys)]
        codes, names, notes = number_classes([numbers for _, numbers in every])
        splits = [Split(values, numbers) for (values, _), numbers in zip(every, codes, strict=True)]
        notes += [f"{path}: arrays that are not used: {', '.join(idle)}"] * bool(idle)
        drawn = with_test(splits[0], splits[1] if len(splits) > 1 else None, test_fraction, split_seed)
        return RawDataset(*drawn, names, notes=tuple(notes))

    return Source((path,), {}, decode)


@contextmanager
def _opened(path: Path) -> Iterator[Mapping[str, Array]]:
    """The file's arrays by their keys; one is read when it is asked for."""
    try:
        stored = np.load(path, allow_pickle=False)
        if isinstance(stored, np.ndarray):
            raise DataError(
                f"{path}: one array without a key; expected an .npz file, as numpy.savez writes it"
            )
        with stored:
            yield stored
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: not readable as .npz ({shortened(str(error), 300)})") from None


def _array(path: Path, arrays: Mapping[str, Array], key: str) -> Array:
    if key not in arrays:
        keys = shortened(", ".join(arrays), 300)
        raise DataError(
            f"{path}: no array {shown(key)}; there are {keys}: data.images and such name them."
            f"{did_you_mean(key, arrays)}"
        )
    return arrays[key]


def _part_of(
    path: Path, arrays: Mapping[str, Array], images: str, labels: str, channels: str
) -> tuple[Array, Labels]:
    values, classes = _array(path, arrays, images), _array(path, arrays, labels)
    if classes.ndim == 2 and classes.shape[1] == 1:
        classes = classes[:, 0]  # as Keras keeps CIFAR's
    whose = "a class, as a whole number or a text, for each of"
    if classes.shape != (values.shape or (0,))[:1] or not len(classes) or classes.dtype.kind not in "biufU":
        one_hot = (
            ", as labels.argmax(axis=1) makes it of a column for each class" if classes.ndim == 2 else ""
        )
        raise DataError(
            f"{path}: {labels} is {classes.dtype} of {classes.shape}; expected {whose} "
            f"{len(values) if values.shape else 0} samples{one_hot}"
        )
    if values.dtype != np.uint8 and values.dtype.kind != "f":
        largest = 65_535 if values.dtype == np.uint16 else 255  # of wider integers few are in use
        raise DataError(
            f"{path}: {images} is {values.dtype}; expected pixels as uint8, or floating-point numbers, as "
            f"(x / {largest}).astype('float32') gives"
        )
    if values.dtype.kind == "f":
        values = _narrowed(path, images, values)
    distinct, places = np.unique(classes, return_inverse=True)
    where = f"{path}, array {shown(labels)}"
    return _channels_first(path, images, values, channels), Labels(where, distinct.tolist(), places)


def _narrowed(path: Path, key: str, values: Array) -> Array:
    """Floating-point numbers as float32; what it cannot hold becomes infinite, and is refused later."""
    if values.dtype.itemsize <= 4:
        return values.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = values.astype(np.float32)
        lost, span = np.abs(values - narrow).max(axis=0), np.ptp(values, axis=0)
        varies = np.isfinite(lost) & (span > ROUNDING * np.abs(values).max(axis=0))
        if (varies & (lost > MOST_LOST * span)).any():
            raise DataError(
                f"{path}: {key} has numbers that float32 cannot tell apart, as of times; expected them "
                "standardised, as (x - x.mean(axis=0)) / x.std(axis=0)"
            )
    return narrow


def _channels_first(path: Path, key: str, values: Array, channels: str) -> Array:
    if values.ndim == 3:  # grey images
        return values[:, None]
    if values.ndim == 2 and values.dtype != np.uint8:
        return values
    if values.ndim != 4:
        raise DataError(
            f"{path}: {key} has {values.ndim} dimensions; expected [n, h, w] or, with channels, 4 of pixels, "
            "or [n, d] of floating-point numbers"
        )
    if channels == "auto":
        first, last = values.shape[1] in GREY_OR_COLOUR, values.shape[3] in GREY_OR_COLOUR
        if first == last:
            raise RecipeError(
                f"{path}: {key} is {values.shape}; expected first or last", path="data.channels"
            )
        channels = "first" if first else "last"
    return values if channels == "first" else np.moveaxis(values, 3, 1)
