"""The named image sets: Parquet or Arrow as Hugging Face has it, or the files that torchvision keeps.

Nothing is downloaded. They lie below `data.folder`, directly or in a folder of the set's name. What is known
of them stands in sets.yaml.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from rayfed_kd.data import SOURCES
from rayfed_kd.data.dataset import Array, RawDataset, Source, Split
from rayfed_kd.data.sources.own_images import split_of_files
from rayfed_kd.data.sources.pixels import Fitting
from rayfed_kd.data.sources.shards.readers import table_reader
from rayfed_kd.data.sources.shards.sources import decode_files, home
from rayfed_kd.errors import DataError
from rayfed_kd.recipe.roles import data_source
from rayfed_kd.recipe.torchvision_import import UNUSABLE, import_torchvision, unusable
from rayfed_kd.recipe.yaml_documents import read_yaml_file

# Where shards of a named set lie: what they are, the patterns of training and of test files.
SHARDS = {
    "Parquet of Hugging Face": ("train-*.parquet", "test-*.parquet"),
    "save_to_disk of Hugging Face's datasets": ("train/*.arrow", "test/*.arrow"),
}


Read = Callable[[Path, bool], Split]  # (root, train) -> images and labels, of the authors' files
AS_IT_IS = Fitting()
COLOURED = Fitting(colour="rgb")  # some of ImageNet's are grey: one channel fills three
# What torchvision raises on files that are missing, cut off or not what their name says.
DAMAGED = (RuntimeError, OSError, ValueError, KeyError, AssertionError, EOFError, pickle.UnpicklingError)


class KnownSet(BaseModel, frozen=True, extra="forbid"):
    """A named set, as `sets.yaml` describes it.

    Attributes:
        name: the recipe's.
        size: of what is to be fetched, and how many samples that is.
        licence: as its authors state it.
        files: address -> MD5 of what is to be fetched; None: there is no sum.
        patterns: the files that are read in its authors' or torchvision's layout; the first
            tells that it is there.
        label_column: in shards; None: shards of this set are not read, their labels are not known.
        summary: a sentence: what it is, its shape, its paper; empty: the source's docstring says it.
        samples: how many the whole set has, for training and for the test.
        shape: of an image, (channels, height, width).
        class_names: one per class.
        mean, std: per channel, of pixels / 255.
    """

    name: str
    size: str
    licence: str
    files: dict[str, str | None]
    patterns: tuple[str, ...]
    label_column: str | None = "label"
    summary: str = ""
    samples: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    class_names: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @property
    def reads(self) -> list[str]:
        """The files and layouts that are read."""
        shards = [f"{train} and {test} ({what})" for what, (train, test) in SHARDS.items()]
        theirs = f"{', '.join(self.patterns)} (as torchvision or its authors have it, unpacked)"
        return [*(shards if self.label_column else ()), theirs]


@cache
def known_sets() -> dict[str, KnownSet]:
    """The named sets, by the names that recipes have for them."""
    listed = read_yaml_file(Path(__file__).parents[1] / "sets.yaml", "table of data sets")
    return {name: KnownSet(name=name, **known) for name, known in listed.items()}


def source_facts(name: str) -> dict[str, Any]:
    """What is known of a registered source: a summary, and of a named set where to get it.

    Args:
        name: a name of `SOURCES`.
    """
    summary = " ".join(SOURCES.find(name, "data.name").__doc__.strip().split("\n\n")[0].split())
    known = known_sets().get(name)
    facts = {"name": name, "summary": summary}
    if known is None:
        return facts
    return {**facts, "reads": known.reads, **known.model_dump(include={"size", "licence", "files"})}


def _named(name: str, read: Read, fitting: Fitting = AS_IT_IS) -> Callable[[Path], Source]:
    """The data source of a named set.

    Args:
        read: reads the files that are not shards.
        fitting: what images of shards are made into.
    """
    known = known_sets()[name]

    @data_source
    def source(folder: Path) -> Source:
        for root in (folder / name, folder):
            for train, test in SHARDS.values() if known.label_column else ():
                place = home(root, train)
                if files := sorted(place.glob(train)):
                    tested = sorted(place.glob(test))
                    decode = partial(_of_shards, known, place, files, tested, fitting)
                    return Source((*files, *tested), {"layout": "shards"}, decode)
            if any(root.glob(known.patterns[0])):
                paths = {file for mask in known.patterns for file in root.glob(mask) if file.is_file()}
                return Source(sorted(paths), {"layout": "files"}, partial(_of_files, known, root, read))
        raise DataError(
            f"data {name} is not in {folder.resolve()}: looked there and in its folder {name} for "
            f"{'; '.join(known.reads)}. Set data.folder or RAYFED_KD_DATA to where it lies, or fetch it "
            "once, as with torchvision.datasets(download=True); `rayfed-kd data` lists addresses."
        )

    source.__doc__ = known.summary
    return source


def _of_shards(
    known: KnownSet, root: Path, train: Sequence[Path], test: Sequence[Path], fitting: Fitting
) -> RawDataset:
    (training, tested), names = decode_files(train, test, table_reader(None, known.label_column), fitting)
    ours, theirs = map(_folded, (known.class_names, names or known.class_names))
    same = sum(our == their for our, their in zip(ours, theirs, strict=False))
    if len(ours) != len(theirs) or 2 * same < len(ours):  # mirrors spell a few names differently
        raise DataError(
            f"data {known.name} in {root}: the {len(theirs)} classes are {', '.join((names or ())[:3])}, "
            f"..., expected the {len(ours)} of {known.name}: {', '.join(known.class_names[:3])}, ... "
            "(data.name: parquet reads any set)"
        )
    return _checked(known, root, training, tested)


def _of_files(known: KnownSet, root: Path, read: Read) -> RawDataset:
    try:
        train, test = read(root, True), read(root, False)
    except DAMAGED as error:
        raise DataError(f"data {known.name} in {root}: torchvision cannot read it: {error}") from None
    except DataError as error:
        raise DataError(f"data {known.name} in {root}: {error}") from None
    return _checked(known, root, train, test)


def _checked(known: KnownSet, root: Path, train: Split, test: Split | None) -> RawDataset:
    """Refuses another set's files: a folder of CIFAR-10 read as MNIST would go unnoticed. A part is noted."""
    if (shape := train.images.shape[1:]) != known.shape:
        raise DataError(f"data {known.name} in {root}: images are {shape}, expected {known.shape}")
    sizes = (len(train), len(test or ()))
    here, whole = (" and ".join(f"{size:,}" for size in each) for each in (sizes, known.samples))
    part = f"data {known.name} is a part here: {here} images for training and test, of {whole}"
    notes = () if sizes == known.samples else (part,)
    return RawDataset(train, test, known.class_names, known.mean, known.std, notes=notes)


def _folded(names: tuple[str, ...]) -> list[str]:
    """Names without case, spaces and signs."""
    return ["".join(filter(str.isalnum, name)).lower() for name in names]


def _split(images: Any, labels: Any) -> Split:
    """[n, h, w] or [n, h, w, c] pixels to [n, c, h, w]."""
    pixels = np.asarray(images)
    pixels = pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, 3, 1)
    return Split(pixels.astype(np.uint8), np.asarray(labels).astype(np.int64))


def _by_torchvision(name: str, root: Path, **options: Any) -> Any:
    """A data set of torchvision, which reads its own layout and checks the sums of some files."""
    try:
        import_torchvision()
    except UNUSABLE as error:
        raise DataError(f"needs torchvision, which {unusable(error)}") from None
    from torchvision import datasets

    return getattr(datasets, name)(root, download=False, **options)


def _reader(name: str, **options: Any) -> Read:
    def read(root: Path, train: bool) -> Split:
        images = _by_torchvision(name, root, train=train, **options)
        return _split(images.data, images.targets)

    return read


def _read_emnist_letters(root: Path, train: bool) -> Split:
    """EMNIST lies on its side, and its letters count from 1."""
    split = _reader("EMNIST", split="letters")(root, train)
    upright: Array = np.ascontiguousarray(split.images.transpose(0, 1, 3, 2))
    return Split(upright, split.labels - 1)


def _read_svhn(root: Path, train: bool) -> Split:
    try:
        images = _by_torchvision("SVHN", root, split="train" if train else "test")
    except ModuleNotFoundError:
        raise DataError("its .mat files are read through scipy: pip install scipy") from None
    # torchvision has turned SVHN to [n, c, h, w] already; `_split` expects channels last.
    return _split(np.moveaxis(images.data, 1, 3), images.labels)


def _read_cinic10(root: Path, train: bool) -> Split:
    known, part = known_sets()["cinic10"], "train" if train else "test"
    files = {name: sorted((root / part / name).glob("*.png")) for name in known.class_names}
    if empty := [f"{part}/{name}" for name, images in files.items() if not images]:
        raise DataError(f"no *.png in {', '.join(empty[:3])} ({len(empty)} folders)")
    return split_of_files(files, known.class_names, COLOURED, known.shape)


mnist = _named("mnist", _reader("MNIST"))
fashion_mnist = _named("fashion_mnist", _reader("FashionMNIST"))
emnist_letters = _named("emnist_letters", _read_emnist_letters)
svhn = _named("svhn", _read_svhn)
cifar10 = _named("cifar10", _reader("CIFAR10"))
cifar100 = _named("cifar100", _reader("CIFAR100"))
cinic10 = _named("cinic10", _read_cinic10, COLOURED)
