"""What `rayfed-kd data check` finds: which sources read a folder's files, and what they make of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rayfed_kd.data.dataset import Dataset, Split
from rayfed_kd.data.loading import find_source, load_dataset
from rayfed_kd.data.sources.image_sets import known_sets
from rayfed_kd.data.sources.image_tree import SUFFIXES
from rayfed_kd.errors import DataError, RayfedError

# Of files: the sources that may read them.
BY_SUFFIX = {
    ".parquet": ("parquet", "csv"),
    ".arrow": ("arrow",),
    ".tar": ("webdataset",),
    ".npz": ("npz", "pfllib"),
    ".csv": ("csv", "text"),
    **dict.fromkeys(SUFFIXES, ("image_folder",)),
}
FILE_OPTION = {**dict.fromkeys(("parquet", "arrow", "webdataset", "csv", "text"), "train"), "npz": "file"}
ON_SHEET, MOST_ON_SHEET, MOST_SIDE = 8, 100, 64  # images of a class, classes, and pixels of a side
Checked = tuple[dict[str, Any], Dataset | None]


def check_folder(place: Path, source: str | None, options: Mapping[str, Any]) -> list[Checked]:
    """Find what lies in a folder, and decode it as a run does.

    Args:
        place: a folder or a file.
        source: what reads it; None: the named sets that are there, else what reads the most files.
        options: of the source.
    Returns: what is known of each data set, and the data set; of a refused one the problem, and None.
    Raises: DataError if nothing is there that a source reads.
    """
    if not place.exists():
        raise DataError(f"{place.resolve()}: there is no such folder")
    folder = place if place.is_dir() else place.parent
    files = [file for file in place.rglob("*") if file.is_file()] if place.is_dir() else [place]
    kinds = Counter(file.suffix.lower() or file.name for file in files)
    if source is None and place.is_dir():
        # LEAF's layout has the JSON of save_to_disk as well.
        sets = [name for name in known_sets() if not (name == "femnist" and ".arrow" in kinds)]
        if present := [name for name in sets if _has(folder, name, options)]:
            return [_checked(name, folder, options) for name in present]
    kind = next((kind for kind, _ in kinds.most_common() if kind in BY_SUFFIX), "")
    sources = (source,) if source else BY_SUFFIX.get(kind)
    if sources is None:
        has = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common(5)) or "no files"
        raise DataError(
            f"{place.resolve()} has {has}; no source reads them: `rayfed-kd data` lists what is read"
        )
    alone = [file for file in files if file.suffix.lower() == kind and file.parent == folder]
    tried = list[Checked]()
    for name in sources:
        option = FILE_OPTION.get(name) if len(alone) == 1 else None
        tried.append(_checked(name, folder, {**({option: alone[0].name} if option else {}), **options}))
        if tried[-1][1] is not None:
            return tried[-1:]
    return tried[:1]


def _has(folder: Path, name: str, options: Mapping[str, Any]) -> bool:
    """Whether a named set's files are there; Parquet and Arrow are a set's in a folder of its name alone."""
    try:
        source = find_source(name, folder, options)
    except RayfedError:
        return False
    return source.settings.get("layout") != "shards" or name in source.files[0].resolve().parts


def _checked(name: str, folder: Path, options: Mapping[str, Any]) -> Checked:
    section = {"data": {"name": name, "folder": str(folder.resolve()), **options}}
    try:
        files = find_source(name, folder, options).files
        data = load_dataset(name, folder, 1.0, options)
    except RayfedError as error:
        return {**section, "problem": str(error)}, None
    known = {
        "files": len(files),
        "bytes": sum(file.stat().st_size for file in files),
        "shape": list(data.train.images.shape[1:]),
        "dtype": str(data.train.images.dtype),
        "train": _counts(data.train, data.class_names),
        "test": data.test and _counts(data.test, data.class_names),
        "clients": None if data.writers is None else len(np.unique(data.writers)),
        "columns": list(data.columns),
        "notes": list(data.notes),
    }
    return {**section, **{fact: value for fact, value in known.items() if value not in (None, [])}}, data


def _counts(split: Split, names: tuple[str, ...]) -> dict[str, Any]:
    counts = np.bincount(split.labels, minlength=len(names)).tolist()
    return {"samples": len(split), "classes": len(names), "by_class": dict(zip(names, counts, strict=True))}


def first_of_each_class(split: Split) -> tuple[Any, Any]:
    """Some images of each class for a contact sheet, [n, c, h, w] in [0, 1], and their labels, [n]."""
    classes = np.unique(split.labels)[:MOST_ON_SHEET]
    rows = np.concatenate([np.flatnonzero(split.labels == label)[:ON_SHEET] for label in classes])
    step = -(-max(split.images.shape[2:]) // MOST_SIDE)  # large images lose lines
    return split.images[rows][..., ::step, ::step] / np.float32(255), split.labels[rows]
