"""Data of a user's own as arrays of an .npz file."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from rayfed_kd.data.dataset import MOST_CLASSES, Array, RawDataset, Source, Split
from rayfed_kd.data.sources.own_images import SplitSeed, TestFraction, held_out, own_file
from rayfed_kd.errors import DataError, RecipeError, nearest, shortened, shown
from rayfed_kd.recipe.roles import data_source

GREY_OR_COLOUR = (1, 3)


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
        arrays = _read_arrays(path)
        there = test_images is not None and test_labels is not None
        default = (test_images, test_labels) == ("x_test", "y_test")
        if there and default and not {"x_test", "y_test"} & set(arrays):
            there = False
        train = _split_of(path, arrays, images, labels, channels)
        test = _split_of(path, arrays, str(test_images), str(test_labels), channels) if there else None
        if test is not None and test_fraction:
            raise RecipeError(f"{path} has a test set; expected 0", path="data.test_fraction")
        if test is None:
            train, test = held_out(train, test_fraction, split_seed)
        top = max(int(split.labels.max()) for split in (train, test) if split is not None)
        return RawDataset(train, test, tuple(str(label) for label in range(top + 1)))

    keys = [images, labels, test_images, test_labels, channels]
    return Source((path,), {"keys": keys, "test": [test_fraction, split_seed]}, decode)


def _read_arrays(path: Path) -> dict[str, Array]:
    try:
        stored = np.load(path, allow_pickle=False)
        if isinstance(stored, np.ndarray):
            raise DataError(
                f"{path}: one array without a key; expected an .npz file, as numpy.savez writes it"
            )
        with stored:
            return {key: stored[key] for key in stored.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not readable as .npz ({shortened(str(error), 300)})") from None


def _split_of(path: Path, arrays: dict[str, Any], images: str, labels: str, channels: str) -> Split:
    for key in (images, labels):
        if key not in arrays:
            near = nearest(key, arrays)
            hint = f" Did you mean {near}?" if near else ""
            keys = shortened(", ".join(arrays), 300)
            raise DataError(
                f"{path}: no array {shown(key)}; there are {keys}: data.images and such name them.{hint}"
            )
    values, classes = arrays[images], arrays[labels]
    if classes.ndim == 2 and classes.shape[1] == 1:
        classes = classes[:, 0]  # as Keras keeps CIFAR's
    if classes.ndim != 1 or classes.dtype.kind not in "iu" or len(classes) != len(values) or not len(classes):
        raise DataError(
            f"{path}: {labels} is {classes.dtype} of {classes.shape}; expected a whole number for each of "
            f"{len(values)} samples"
        )
    if classes.min() < 0 or classes.max() >= MOST_CLASSES:
        raise DataError(
            f"{path}: {labels} has labels from {classes.min()} to {classes.max()}, expected 0 to "
            f"{MOST_CLASSES - 1} at most"
        )
    if values.dtype != np.uint8 and values.dtype.kind != "f":
        raise DataError(
            f"{path}: {images} is {values.dtype}; expected pixels as uint8, or floating-point numbers"
        )
    if values.dtype.kind == "f":
        values = values.astype(np.float32)
        if not np.isfinite(values).all():
            raise DataError(f"{path}: {images} has values that are NaN or infinite")
    return Split(_channels_first(path, images, values, channels), classes.astype(np.int64))


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
