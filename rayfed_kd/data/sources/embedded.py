"""Data that needs no files: the digits that come with the package, and made-up data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from rayfed_kd.data.dataset import MOST_CLASSES, RawDataset, Source, Split, check_size
from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.roles import data_source
from rayfed_kd.recipe.seeds import numpy_stream

DIGITS = Path(__file__).with_name("digits.npz")


@data_source
def digits(folder: Path) -> Source:
    """1,797 handwritten digits, 1x8x8; no official test set.

    Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits (its test part), UCI, CC BY 4.0.
    """

    def decode() -> RawDataset:
        with np.load(DIGITS) as stored:
            # The digits are stored with values from 0 to 16.
            pixels = np.round(stored["images"].astype(np.float64) * 255 / 16).astype(np.uint8)
            labels = stored["labels"].astype(np.int64)
        return RawDataset(Split(pixels, labels), None, tuple("0123456789"))

    return Source((DIGITS,), {}, decode)


@data_source
def synthetic(
    folder: Path,
    *,
    samples: Annotated[int, Field(ge=1, description="training samples")] = 2000,
    test_samples: Annotated[int, Field(ge=0, description="official test samples; 0: none")] = 0,
    classes: Annotated[int, Field(ge=2, description="classes, equally frequent")] = 10,
    shape: Annotated[
        list[Annotated[int, Field(ge=1)]],
        Field(min_length=1, max_length=3, description="(c, h, w): uint8 images; (d,): float features"),
    ] = [1, 16, 16],  # noqa: B006 - never changed
    signal: Annotated[float, Field(ge=0, description="how far classes lie apart; 0: pure noise")] = 1.0,
    data_seed: Annotated[int, Field(ge=0, description="seed of the data, apart from the run's")] = 0,
) -> Source:
    """Made-up data: one random pattern per class, times `signal`, plus noise of deviation 1.

    The options stand in the signature with their meaning; `folder` is not read.

    Raises: RecipeError if `shape` has two sides.
    """
    for name, count in (("samples", samples), ("test_samples", test_samples), ("classes", classes)):
        check_size(f"data.{name} = {count}", (count, *shape), np.dtype(np.float32).itemsize)
    if classes > MOST_CLASSES:
        raise RecipeError(f"{classes} classes; expected at most {MOST_CLASSES}", path="data.classes")
    if len(shape) == 2:
        raise RecipeError(f"{shape} is neither (c, h, w) of images nor (d,) of features", path="data.shape")

    def decode() -> RawDataset:
        stream = numpy_stream(data_seed, "synthetic data")
        patterns = stream.standard_normal((classes, *shape), dtype=np.float32) * signal

        def split(count: int) -> Split:
            labels = (np.arange(count) % classes).astype(np.int64)
            values = patterns[labels] + stream.standard_normal((count, *shape), dtype=np.float32)
            if len(shape) == 3:
                # Three deviations on each side fit into eight bits.
                values = np.clip(np.round(128 + 40 * values), 0, 255).astype(np.uint8)
            return Split(values, labels)

        train = split(samples)
        test = split(test_samples) if test_samples else None
        return RawDataset(train, test, tuple(str(label) for label in range(classes)))

    return Source((), {}, decode)
