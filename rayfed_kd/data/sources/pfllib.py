"""Folders that PFLlib and HtFLlib generate: .npz files of each client's training and test samples.

`train/0.npz`, `test/0.npz` and so on hold one array `data`, a pickled mapping {"x": samples, "y": labels}. A
pickle can run any code, so it is read here by a reader that makes NumPy arrays and plain values and nothing
else: see `PlainUnpickler`.
"""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rayfed_kd.data.dataset import MOST_CLASSES, Array, RawDataset, Source, Split
from rayfed_kd.data.decoding import decoded
from rayfed_kd.errors import DataError, shortened, shown
from rayfed_kd.files.whole import read_json
from rayfed_kd.recipe.roles import data_source
from rayfed_kd.recipe.sample_shapes import TextShape

CONFIG = "config.json"
# How far a scaled pixel may lie from a whole number: float32 keeps pixels to 1e-5.
WHOLE = 1e-3


@data_source
def pfllib(folder: Path) -> Source:
    """A folder that a generate_*.py of PFLlib (or HtFLlib) made: train/N.npz, test/N.npz, config.json.

    All samples of all clients are the training samples of this data set; the partition `from_source` gives
    each client its own two parts again. Images that were scaled to [-1, 1] or [0, 1] are stored as the pixels
    that they were, and models see the same numbers as in PFLlib, to 1e-6. Rows of whole numbers are texts.
    """
    if not (folder / "train").is_dir():
        raise DataError(
            f"data.folder: {folder.resolve()} has no folder train; expected one that PFLlib generated, as "
            "PFLlib/dataset/MNIST, with train/0.npz, test/0.npz and so on"
        )
    config = read_json(folder / CONFIG)  # Shakespeare has none
    files = {part: _client_files(folder / part) for part in ("train", "test")}
    clients = len(files["train"])
    if len(files["test"]) != clients or config.get("num_clients", clients) != clients:
        raise DataError(
            f"{folder}: {clients} files of clients in train, {len(files['test'])} in test, "
            f"num_clients = {shown(config.get('num_clients'))} in {CONFIG}; expected the same number"
        )
    every = (*files["train"], *files["test"])
    classes = config.get("num_classes")
    return Source(every, {"classes": classes}, partial(_decoded, folder, files, classes))


def _client_files(folder: Path) -> list[Path]:
    """0.npz, 1.npz and so on, without a gap."""
    numbered = sorted((int(file.stem), file) for file in folder.glob("*.npz") if file.stem.isdecimal())
    numbers = [number for number, _ in numbered]
    if not numbers or numbers != list(range(len(numbers))):
        gap = next((n for n in range(len(numbers) + 1) if n not in numbers), 0)
        raise DataError(f"{folder}: no {gap}.npz; expected a file for each client, from 0.npz on")
    return [file for _, file in numbered]


def _decoded(folder: Path, files: Mapping[str, Sequence[Path]], classes: Any) -> RawDataset:
    samples, labels, writers, held_out = list[Array](), list[Array](), list[Array](), list[Array]()
    ordered = [(client, part) for client in range(len(files["train"])) for part in ("train", "test")]
    for client, part in decoded(ordered, len(ordered)):
        file = files[part][client]
        arrays, own_labels = _read_client(file)
        if not len(arrays):
            continue
        if samples and (arrays.shape[1:], arrays.dtype) != (samples[0].shape[1:], samples[0].dtype):
            raise DataError(
                f"{file}: samples are {arrays.shape[1:]} {arrays.dtype}, those of the files before "
                f"{samples[0].shape[1:]} {samples[0].dtype}; expected one kind"
            )
        samples.append(arrays)
        labels.append(own_labels)
        writers.append(np.full(len(arrays), client))
        held_out.append(np.full(len(arrays), part == "test"))
    if not samples:
        raise DataError(f"{folder}: no samples in any file")
    every = np.concatenate(labels)
    top = int(every.max())
    if not (isinstance(classes, int) and top < classes <= MOST_CLASSES):
        if classes is not None:
            raise DataError(
                f"{folder / CONFIG}: num_classes = {shown(classes)}, and there are labels from 0 to {top}"
            )
        classes = top + 1
    values, statistics = _as_pixels(np.concatenate(samples))
    text = TextShape(values.shape[1], int(values.max()) + 1) if values.dtype == np.int64 else None
    names = tuple(str(label) for label in range(classes))
    return RawDataset(
        Split(values, every),
        None,
        names,
        *statistics,
        writers=np.concatenate(writers).astype(np.int64),
        held_out=np.concatenate(held_out),
        sample=text,
    )


def _read_client(file: Path) -> tuple[Array, Array]:
    """A client's samples, [n, ...] float32 or [n, length] int64 of texts, and labels, [n] int64."""
    try:
        content = _read_pickled(file)
        samples, labels = _samples(content["x"]), np.asarray(content["y"])
    except Exception as error:  # a damaged pickle may end in any
        message = shortened(" ".join(str(error).split()), 300)
        raise DataError(f"{file}: not as PFLlib writes it ({type(error).__name__}: {message})") from None
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) != len(samples):
        raise DataError(
            f"{file}: y is {labels.dtype} of {labels.shape}; expected a whole number for each of "
            f"{len(samples)} samples"
        )
    if len(labels) and (labels.min() < 0 or labels.max() >= MOST_CLASSES):
        raise DataError(
            f"{file}: labels from {labels.min()} to {labels.max()}, expected 0 to {MOST_CLASSES - 1} at most"
        )
    if samples.dtype.kind in "iu" and samples.ndim == 2 and not (samples < 0).any():
        return samples.astype(np.int64), labels.astype(np.int64)
    if samples.dtype.kind != "f":
        raise DataError(
            f"{file}: x is {samples.dtype} of {samples.shape}; expected floating-point numbers, or a row of "
            "token numbers from 0 for each text"
        )
    if not np.isfinite(samples).all():
        raise DataError(f"{file}: x has values that are NaN or infinite")
    return samples.astype(np.float32), labels.astype(np.int64)


def _samples(x: Any) -> Array:
    """x as an array. AGNews' texts are pairs of tokens, padded with 0, and their number."""
    if isinstance(x, np.ndarray) and x.dtype == object and x.ndim == 2 and x.shape[1] == 2:
        return np.stack([np.asarray(tokens) for tokens, _ in x])
    values = np.asarray(x)
    # Characters, as Shakespeare's, are numbered from 0; here 0 is padding.
    return values + 1 if values.dtype.kind in "iu" and values.ndim == 2 else values


def _as_pixels(values: Array) -> tuple[Array, tuple[tuple[float, ...] | None, tuple[float, ...] | None]]:
    """Pixels as they were before they were scaled, and mean and deviation that scale them so again.

    Everything else stays as it is.
    """
    if values.ndim == 4:
        for mean, deviation in ((0.0, 1.0), (0.5, 0.5)):
            # Sample by sample, because the whole in float64 takes eight times the pixels' memory.
            pixels = np.empty(values.shape, dtype=np.uint8)
            for place, sample in enumerate(values):
                levels = (sample.astype(np.float64) * deviation + mean) * 255
                rounded = np.round(levels)
                if np.abs(levels - rounded).max() > WHOLE or rounded.min() < 0 or rounded.max() > 255:
                    break
                pixels[place] = rounded
            else:
                channels = values.shape[1]
                return pixels, ((mean,) * channels, (deviation,) * channels)
    return values, (None, None)


def _read_pickled(file: Path) -> Any:
    """The object in `data.npy` of an .npz file, made of NumPy arrays and plain values alone."""
    with zipfile.ZipFile(file) as archive:
        stored = io.BytesIO(archive.read("data.npy"))
    version = np.lib.format.read_magic(stored)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, _, dtype = read[version](stored)
    if not dtype.hasobject:
        raise ValueError(f"data is an array of {dtype}, expected a pickled mapping")
    unpickled = np.asarray(PlainUnpickler(stored).load(), dtype=object).reshape(shape)
    content = unpickled.item()
    if not isinstance(content, dict):
        raise ValueError(f"data is a {type(content).__name__}, expected a mapping of x and y")
    return content


# NumPy 2 writes numpy._core, NumPy 1 numpy.core; here it is called:
CORE = np.zeros(1).__reduce__()[0].__module__.rpartition(".")[0]
# Module -> what pickles of arrays name in it; none of it calls anything that a pickle gives.
PLAIN = {
    "numpy": ("ndarray", "dtype"),
    f"{CORE}.multiarray": ("_reconstruct", "scalar"),
    f"{CORE}.numeric": ("_frombuffer",),
    "_codecs": ("encode",),  # bytes as the oldest protocol has them
}


class PlainUnpickler(pickle.Unpickler):
    """Reads pickles of arrays, numbers, texts, lists and mappings; refuses any other name, uncalled."""

    def find_class(self, module: str, name: str) -> Any:
        """What the pickle names, if it is one of PLAIN.

        Raises: pickle.UnpicklingError for everything else.
        """
        module = re.sub(r"numpy\._?core", CORE, module)
        if name not in PLAIN.get(module, ()):
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, which no array needs; nothing was called"
            )
        return super().find_class(module, name)
