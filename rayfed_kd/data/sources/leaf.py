"""FEMNIST as LEAF writes it: JSON files of users with their samples."""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from rayfed_kd.data.dataset import Array, RawDataset, Source, Split
from rayfed_kd.errors import DataError, shown
from rayfed_kd.recipe.roles import data_source

CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)


@data_source
def femnist(folder: Path) -> Source:
    """FEMNIST, 1x28x28, 62 classes, with its writers (Caldas et al. 2018, arXiv 1812.01097).

    Reads all_data/*.json, or train/*.json and test/*.json, below the folder or its folder femnist.
    """
    for root in (folder, folder / "femnist", folder / "femnist" / "data"):
        files = sorted(root.glob("all_data/*.json"))
        train = files or sorted(root.glob("train/*.json"))
        if train:
            test = [] if files else sorted(root.glob("test/*.json"))
            return Source((*train, *test), {}, partial(_decoded, train, test))
    raise DataError(
        f"data femnist is not in {folder.resolve()}: looked there and in its folder femnist for "
        "all_data/*.json or train/*.json. LEAF's preprocess.sh makes it; set data.folder or RAYFED_KD_DATA"
    )


def _decoded(train: Sequence[Path], test: Sequence[Path]) -> RawDataset:
    split, writers = _read(train)
    return RawDataset(split, _read(test)[0] if test else None, CLASSES, writers=writers)


def _read(files: Sequence[Path]) -> tuple[Split, Array]:
    """All samples of the files, and each one's writer by rank of its name."""
    pixels: list[Array] = []
    labels: list[Array] = []
    names: list[str] = []
    for file in files:
        try:
            content = json.loads(file.read_text(encoding="utf8"))
            for user in content["users"]:
                samples = content["user_data"][user]
                pixels.append(_pixels(samples["x"]))
                labels.append(_whole(samples["y"]).reshape(len(pixels[-1])))
                names.extend([user] * len(pixels[-1]))
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise DataError(f"{file}: not LEAF's layout (users, user_data: x, y): {shown(error)}") from None
    if not names:
        raise DataError(f"{files[0]}: no samples in this file nor in the {len(files) - 1} beside it")
    writers = np.unique(np.array(names), return_inverse=True)[1].astype(np.int64)
    return Split(np.concatenate(pixels), np.concatenate(labels)), writers


def _whole(labels: Sequence[float]) -> Array:
    """[n] int64 of n whole numbers."""
    values = np.asarray(labels)
    numbers: Array = values.astype(np.int64)
    if not np.array_equal(values, numbers):
        raise ValueError("labels that are no whole numbers")
    return numbers


def _pixels(samples: Sequence[Sequence[float]]) -> Array:
    """[n, 1, 28, 28] uint8 of n lists of 784 numbers from 0 to 1."""
    values = np.asarray(samples, dtype=np.float64).reshape(-1, 1, 28, 28)
    if values.size and not (values.min() >= 0 and values.max() <= 1):  # also of NaN
        raise ValueError(f"pixels from {values.min():g} to {values.max():g}, expected 0 to 1")
    # LEAF writes pixels as shares of 255; rounded, they are the original bytes.
    return np.round(values * 255).astype(np.uint8)
