"""Decoded once: arrays in a cache folder, memory-mapped by every process of a machine.

An entry is named by what it was made from: source, settings and the files' content. It is written
aside and renamed, under a lock, so two processes that start at once make it once. A file's content
is hashed again only if its size or time changed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from filelock import FileLock

from rayfed_kd.data.cache_keys import contents, entry_key
from rayfed_kd.data.dataset import Array, Dataset, RawDataset, Source, Split, of_each_class, of_rows
from rayfed_kd.data.decoding import begin_decoding
from rayfed_kd.errors import DataError, kind_of, shortened, shown
from rayfed_kd.files.whole import atomic_write, folder_written_aside, make_folder, remove_unfinished
from rayfed_kd.recipe.registry import blaming
from rayfed_kd.recipe.sample_shapes import RowShape, Shape, TextShape, shape_details, shape_of
from rayfed_kd.recipe.seeds import numpy_stream

SCALE = "classes and scale"  # the part of `content_hashes` that is in no file of arrays
ELSEWHERE = "set RAYFED_KD_CACHE to a folder with room for the decoded images"


def cache_folder() -> Path:
    """$RAYFED_KD_CACHE, else rayfed-kd in the user's cache folder."""
    if chosen := os.environ.get("RAYFED_KD_CACHE"):
        return Path(chosen).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "rayfed-kd"


def load_cached(name: str, source: Source, fraction: float) -> Dataset:
    """Load a source's data set from the cache; decode it first if it is not there or damaged.

    Args:
        name: the source's name in the recipe, a part of the entry's name.
        source: what to decode.
        fraction: share of each class's training samples to keep, above 0 and at most 1.
    Returns: the data set, memory-mapped.
    Raises: DataError if it cannot be decoded or the cache not be written.
    """
    folder = _writable(cache_folder())
    key = entry_key(name, source, fraction, folder)
    entry = folder / f"{name.rpartition(':')[2]}-{key}"
    # Looked at under the lock: another process may have made the entry while this one waited.
    with FileLock(folder / f".{key}.lock"):
        if not is_whole(entry):
            begin_decoding(name)
            with blaming(f"data.name: {name}"):
                raw = source.decode()
            _check(name, raw)
            notes = (*raw.notes, *_absent(raw))
            _write(entry, name, replace(_reduced(raw, fraction), notes=notes), len(raw.train))
    return open_entry(entry)


def content_hashes(dataset: Dataset) -> dict[str, str]:
    """A hash of each part of a data set, its rows in their order: what a run is of, beside its recipe.

    Args:
        dataset: of a cache entry. A file is read once: its hash is remembered, as those of sources are.
    Returns: part, as `train-labels` -> hash.
    """
    files = sorted(dataset.folder.glob("*.npy"))
    hashes = dict(zip([file.stem for file in files], contents(files, dataset.folder.parent), strict=True))
    named = json.dumps([dataset.class_names, dataset.mean, dataset.std])
    return {**hashes, SCALE: hashlib.blake2b(named.encode(), digest_size=16).hexdigest()}


def pack_entry(entry: Path) -> dict[str, Array]:
    """Read an entry's files to send them to another machine: name -> content, [bytes] uint8."""
    files = sorted(file for file in entry.iterdir() if file.is_file())
    return {file.name: np.fromfile(file, np.uint8) for file in files}


def unpack_entry(entry: Path, files: Mapping[str, Array]) -> None:
    """Write an entry that another machine sent, unless it is there already.

    A lock makes two processes that do so at once write it once.

    Args:
        entry: where it is to lie.
        files: name -> content, [bytes] uint8, as `pack_entry` gives them.
    Raises: DataError if the disk does not take it.
    """
    folder = _writable(entry.parent)
    # The entry's name ends with its key, so this is the lock of `load_cached`.
    with FileLock(folder / f".{entry.name.rpartition('-')[2]}.lock"):
        if is_whole(entry):
            return
        with _new_entry(entry) as aside:
            for name, content in files.items():
                content.tofile(aside / name)


def _writable(folder: Path) -> Path:
    """The folder, made if it is not there.

    Raises: DataError if nothing can be written there.
    """
    try:
        make_folder(folder)
    except OSError as error:
        raise DataError(f"cache folder {folder} cannot be made ({error}); {ELSEWHERE}") from None
    if not os.access(folder, os.W_OK):
        raise DataError(f"cache folder {folder} is not writable; {ELSEWHERE}")
    return folder


def open_entry(entry: Path) -> Dataset:
    """Memory-map an entry as a data set.

    Raises: DataError if it is not whole.
    """
    if not is_whole(entry):
        raise DataError(f"{entry}: no whole cache entry; the run must be started anew to decode the data")
    meta = json.loads((entry / "meta.json").read_text(encoding="utf8"))

    def mapped(file: str) -> Array | None:
        # torch wants writable memory. Copy-on-write pages give it without a copy; the file stays as it is.
        return np.load(entry / file, mmap_mode="c") if file in meta["files"] else None

    def split(part: str) -> Split | None:
        images, labels = mapped(f"{part}-images.npy"), mapped(f"{part}-labels.npy")
        return None if images is None or labels is None else Split(images, labels)

    train = split("train")
    assert train is not None
    return Dataset(
        name=meta["name"],
        folder=entry,
        train=train,
        test=split("test"),
        class_names=tuple(meta["class_names"]),
        mean=tuple(meta["mean"]),
        std=tuple(meta["std"]),
        writers=mapped("writers.npy"),
        columns={name: np.load(entry / file, mmap_mode="c") for name, file in meta["columns"].items()},
        held_out=mapped("held_out.npy"),
        sample=shape_of(train.images.shape[1:], meta["sample"]) if meta["sample"] else None,
        whole=meta["whole"],
        notes=tuple(meta["notes"]),
    )


def locate_entry(entry: Path) -> Path:
    """An entry's place: as it is if it names one, else in this machine's own cache folder."""
    return entry if entry.is_absolute() else cache_folder() / entry


def is_whole(entry: Path) -> bool:
    """Whether every file has the size that was written; meta.json comes last."""
    try:
        meta = json.loads((entry / "meta.json").read_text(encoding="utf8"))
        return all((entry / file).stat().st_size == size for file, size in meta["files"].items())
    # The last three: meta.json is valid JSON, but not of the form that `_write` gives it.
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _write(entry: Path, name: str, raw: RawDataset, whole: int) -> None:
    """Writes the entry; the caller holds its lock.

    Raises: DataError if the disk does not take it.
    """
    mean, std = _statistics(raw.train.images) if raw.mean is None or raw.std is None else (raw.mean, raw.std)
    arrays = {"train-images.npy": raw.train.images, "train-labels.npy": raw.train.labels}
    optional = {"writers.npy": raw.writers, "held_out.npy": raw.held_out}
    if raw.test is not None:
        optional |= {"test-images.npy": raw.test.images, "test-labels.npy": raw.test.labels}
    arrays |= {file: values for file, values in optional.items() if values is not None}
    # A column's name is a user's, and may be no file's.
    columns = {name: f"column-{place}.npy" for place, name in enumerate(raw.columns)}
    arrays |= {columns[name]: values for name, values in raw.columns.items()}
    with _new_entry(entry) as aside:
        for file, array in arrays.items():
            np.save(aside / file, np.ascontiguousarray(array))
        sizes = {file: (aside / file).stat().st_size for file in arrays}
        facts = {"name": name, "class_names": raw.class_names, "mean": mean, "std": std, "notes": raw.notes}
        # `whole`: training samples before `fraction`.
        sample = {} if raw.sample is None else shape_details(raw.sample)
        meta = {**facts, "files": sizes, "whole": whole, "columns": columns, "sample": sample}
        atomic_write(aside / "meta.json", json.dumps(meta, default=lambda number: number.tolist()))


@contextmanager
def _new_entry(entry: Path) -> Iterator[Path]:
    """An empty folder to write the entry into, which takes its place at the end; its lock is held.

    Raises: DataError if the disk does not take it.
    """
    try:
        remove_unfinished(entry.parent, entry.name)  # left by a process that was killed in mid-writing
        with folder_written_aside(entry) as aside:
            yield aside
    except OSError as error:
        raise DataError(f"cache entry {entry} cannot be written ({error}); {ELSEWHERE}") from None


def _reduced(raw: RawDataset, fraction: float) -> RawDataset:
    if fraction >= 1:
        return raw
    # Drawn from a stream of its own: the same samples for every seed of a run.
    chosen = of_each_class(raw.train.labels, fraction, numpy_stream(0, "data fraction"), least=1)
    train = Split(raw.train.images[chosen], raw.train.labels[chosen])
    return replace(of_rows(raw, chosen), train=train)


def _absent(raw: RawDataset) -> Iterator[str]:
    """Notes of classes without a sample, and of a single class."""
    if len(raw.class_names) == 1:
        yield f"all samples are of one class, {raw.class_names[0]}"
    for part, split in (("training", raw.train), ("official test", raw.test)):
        if split is not None:
            counts = np.bincount(split.labels, minlength=len(raw.class_names))
            names = [raw.class_names[label] for label in np.flatnonzero(counts == 0)]
            if names:
                some = shortened(", ".join(names), 200)
                yield f"the {part} set has no sample of {len(names)} of {len(counts)} classes: {some}"


def _check(name: str, raw: RawDataset) -> None:
    """Refuses what a source, also a user's own, must not hand over.

    Raises: DataError
    """
    _check_types(name, raw)
    _check_split(f"data {name}, train", raw.train, len(raw.class_names), raw.sample)
    shape = raw.train.images.shape[1:]
    if raw.test is not None:
        _check_split(f"data {name}, test", raw.test, len(raw.class_names), raw.sample)
        if raw.test.images.shape[1:] != shape or raw.test.images.dtype != raw.train.images.dtype:
            raise DataError(
                f"data {name}: test samples are {raw.test.images.shape[1:]} {raw.test.images.dtype}, "
                f"training samples {shape} {raw.train.images.dtype}; expected the same"
            )
    means, deviations = (0 if values is None else len(values) for values in (raw.mean, raw.std))
    if means != deviations or (raw.mean is not None and means != shape[0]):
        raise DataError(
            f"data {name}: {means} values of mean, {deviations} of std, expected one for each of {shape[0]}"
        )
    if means:
        scale = np.array([raw.mean, raw.std])
        usual = scale.dtype.kind in "iuf" and scale.min() >= 0 and scale[0].max() <= 1 and scale[1].min() > 0
        if not usual or np.isinf(scale).any():
            given = f"mean is {shown(raw.mean)}, std is {shown(raw.std)}, of pixels / 255"
            raise DataError(f"data {name}: {given}; expected means from 0 to 1, and deviations above 0")
    of_samples = {"writers": raw.writers, "values of held_out": raw.held_out}
    of_samples |= {f"values of the column {column}": values for column, values in raw.columns.items()}
    for what, known in of_samples.items():
        if known is None:
            continue
        kinds, wanted = ("b", "bool") if known is raw.held_out else ("biuU", "int64")
        if not (_is_array(known) and known.shape == raw.train.labels.shape and known.dtype.kind in kinds):
            given = f"{np.asarray(known).size} {what} of {len(raw.train)} training samples, {kind_of(known)}"
            raise DataError(f"data {name}: {given} of {np.asarray(known).dtype}; expected [n] {wanted}")
    if raw.held_out is not None and raw.writers is None:
        raise DataError(f"data {name}: held_out is of writers' samples; expected writers as well")


def _check_types(name: str, raw: object) -> None:
    """Raises: DataError if `decode` gave something else than its type says."""
    if not isinstance(raw, RawDataset):
        raise DataError(
            f"data {name}: decode() returned a {type(raw).__name__}, expected a "
            "rayfed_kd.data.dataset.RawDataset"
        )
    parts = {"train": raw.train} if raw.test is None else {"train": raw.train, "test": raw.test}
    for part, split in parts.items():
        if not isinstance(split, Split):
            raise DataError(f"data {name}: {part} is a {type(split).__name__}, expected a Split")
        for what, values in (("images", split.images), ("labels", split.labels)):
            if not _is_array(values):
                raise DataError(
                    f"data {name}, {part}: {what} are a {type(values).__name__}, expected a numpy array"
                )
    names = raw.class_names
    listed = isinstance(names, Sequence) and not isinstance(names, str)
    if not (listed and all(isinstance(name, str) for name in names)):
        raise DataError(f"data {name}: class_names is {shown(names)}, expected a text for each class")


def _is_array(values: object) -> bool:
    # What a mask hides would be read like the rest.
    return isinstance(values, np.ndarray) and not isinstance(values, np.ma.MaskedArray)


def _check_split(where: str, split: Split, classes: int, sample: Shape | None) -> None:
    images, labels = split.images, split.labels
    if len(images) != len(labels) or len(labels) == 0:
        raise DataError(f"{where}: {len(images)} images and {len(labels)} labels")
    if not images[0].size:
        raise DataError(f"{where}: images are {images.shape}: samples of no numbers")
    if labels.dtype != np.int64 or labels.ndim != 1:
        raise DataError(f"{where}: labels are {labels.dtype} of {labels.shape}, expected int64 of [n]")
    if isinstance(sample, TextShape):
        _check_codes(f"{where}: tokens", images, sample, np.int64, [sample.vocabulary] * sample[0])
    elif isinstance(sample, RowShape):
        codes = [0] * sample.numbers + list(sample.categories)
        _check_codes(f"{where}: rows", images, sample, np.float32, codes)
    elif images.dtype not in (np.uint8, np.float32):
        raise DataError(
            f"{where}: images are {images.dtype}; expected uint8 or float32, or int64 tokens beside "
            "sample=TextShape(...)"
        )
    elif images.ndim < 2 or (images.dtype == np.uint8 and images.ndim != 4):
        raise DataError(
            f"{where}: images are {images.shape}, expected [n, c, h, w] pixels or [n, ...] floats"
        )
    elif _channels_last(images):
        raise DataError(f"{where}: images are {images.shape}, with channels last; expected [n, c, h, w]")
    if images.dtype == np.float32 and not (finite := np.isfinite(images)).all():
        row = int(np.argwhere(~finite)[0, 0])
        raise DataError(f"{where}: sample {row} has NaN, infinite values or ones above what float32 holds")
    if labels.min() < 0 or labels.max() >= classes:
        raise DataError(f"{where}: labels from {labels.min()} to {labels.max()}, expected 0 to {classes - 1}")


def _channels_last(images: Array) -> bool:
    """Whether samples look like [h, w, c]; a series of floats may have three values a step, too."""
    if images.dtype == np.uint8:
        return images.shape[3] in (1, 3, 4) and min(images.shape[1:3]) > 4
    return images.ndim == 4 and images.shape[3] == 3 and images.shape[1] == images.shape[2] > 4


def _check_codes(
    what: str, values: Array, sample: Shape, dtype: type[np.generic], codes: Sequence[int]
) -> None:
    """Tokens and categories are whole numbers below their number of codes; 0 codes: any number."""
    if values.dtype != dtype or values.shape[1:] != tuple(sample):
        raise DataError(
            f"{what} are {values.dtype} of {values.shape[1:]}, expected {np.dtype(dtype)} of {tuple(sample)}"
        )
    coded = np.array(codes)[np.newaxis]
    beyond = (coded > 0) & ((values < 0) | (values >= coded) | (values != np.round(values)))
    if beyond.any():
        row, place = (int(index) for index in np.argwhere(beyond)[0])
        raise DataError(
            f"{what}: {values[row, place]:g} in sample {row}, place {place}; expected whole numbers from 0 "
            f"to {codes[place] - 1}"
        )


def _statistics(images: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Per channel mean and deviation of pixels / 255; features count as they are: 0 and 1."""
    channels = images.shape[1]
    if images.dtype != np.uint8:
        return (0.0,) * channels, (1.0,) * channels
    # From counts of the 256 values: their sums are exact, and no float copy of all images is made.
    values = np.arange(256) / 255
    counts = [np.bincount(images[:, c].ravel(), minlength=256) for c in range(channels)]
    total = images.size / channels
    means = [float(count @ values / total) for count in counts]
    deviations = [
        float(np.sqrt(count @ (values - mean) ** 2 / total))
        for count, mean in zip(counts, means, strict=True)
    ]
    # A channel of one colour has deviation 0, by which nothing can be divided.
    return tuple(means), tuple(deviation or 1.0 for deviation in deviations)
