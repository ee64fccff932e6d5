"""The named image sets: from Parquet in the Hugging Face layout, or from torchvision's files.

Nothing is downloaded. Below `data.folder`, directly or in a folder of the set's name, either
train-*.parquet and test-*.parquet or the files that torchvision keeps are taken.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rayfed_kd.data.dataset import Array, RawDataset, Source, Split
from rayfed_kd.data.sources.parquet import IMAGE_COLUMNS, decode_files, decode_images
from rayfed_kd.errors import DataError
from rayfed_kd.recipe.roles import data_source
from rayfed_kd.recipe.torchvision_import import UNUSABLE, import_torchvision, unusable

Statistics = tuple[tuple[float, ...], tuple[float, ...]]
# What torchvision raises on files that are missing, cut off or not what their name says.
DAMAGED = (RuntimeError, OSError, ValueError, KeyError, AssertionError, EOFError, pickle.UnpicklingError)


@dataclass(frozen=True)
class ImageSet:
    """What is known of a named set.

    Attributes:
        name: the recipe's name.
        patterns: what torchvision keeps below its root.
        read: (root, train) -> images and labels, through torchvision.
        shape: (channels, height, width).
        class_names: one per class.
        statistics: mean and deviation per channel of pixels / 255.
        label_column: in Parquet; None: Parquet files of this set are not read, their layout is not known.
    """

    name: str
    patterns: tuple[str, ...]
    read: Callable[[Path, bool], Split]
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    statistics: Statistics
    label_column: str | None = "label"

    def source(self, folder: Path) -> Source:
        """The set's files below `folder`; its folder of the set's name goes first.

        Raises: DataError if neither layout is there.
        """
        for root in (folder / self.name, folder):
            train = sorted(root.glob("train-*.parquet")) if self.label_column else []
            if train:
                return self._parquet(root, train, sorted(root.glob("test-*.parquet")))
            if any(root.glob(self.patterns[0])):
                return self._torchvision(root)
        parquet = "train-*.parquet, test-*.parquet (Hugging Face layout) and " if self.label_column else ""
        raise DataError(
            f"data {self.name} is not in {folder.resolve()}: looked there and in its folder {self.name} for "
            f"{parquet}{', '.join(self.patterns)} (torchvision layout). Set data.folder "
            f"or RAYFED_KD_DATA to where it lies, or fetch it once with torchvision.datasets(download=True)."
        )

    def _parquet(self, root: Path, train: list[Path], test: list[Path]) -> Source:
        def decode() -> RawDataset:
            assert self.label_column is not None
            (training, tested), names = decode_files((train, test), IMAGE_COLUMNS, (self.label_column,))
            self._check(root, training, names)
            return RawDataset(training, tested, self.class_names, *self.statistics)

        return Source((*train, *test), {"layout": "parquet"}, decode)

    def _check(self, root: Path, train: Split, names: tuple[str, ...] | None) -> None:
        """Refuses another set's files: a folder of CIFAR-10 read as MNIST would go unnoticed."""
        shape = tuple(train.images.shape[1:])
        if shape != self.shape:
            raise DataError(f"data {self.name} in {root}: images are {shape}, expected {self.shape}")
        ours, theirs = map(_folded, (self.class_names, names or self.class_names))
        same = sum(our == their for our, their in zip(ours, theirs, strict=False))
        if len(ours) != len(theirs) or 2 * same < len(ours):  # mirrors spell a few names differently
            raise DataError(
                f"data {self.name} in {root}: the {len(theirs)} classes are {', '.join((names or ())[:3])}, "
                f"..., expected the {len(ours)} of {self.name}: {', '.join(self.class_names[:3])}, ... "
                f"(data.name: parquet reads any set)"
            )

    def _torchvision(self, root: Path) -> Source:
        def decode() -> RawDataset:
            try:
                import_torchvision()
            except UNUSABLE as error:
                raise DataError(
                    f"data {self.name} in {root}: needs torchvision, which {unusable(error)}"
                ) from None
            try:
                train, test = self.read(root, True), self.read(root, False)
            except DAMAGED as error:
                raise DataError(f"data {self.name} in {root}: torchvision cannot read it: {error}") from None
            self._check(root, train, None)
            return RawDataset(train, test, self.class_names, *self.statistics)

        files = sorted(file for pattern in self.patterns for file in root.glob(pattern) if file.is_file())
        return Source(files, {"layout": "torchvision"}, decode)


def _folded(names: tuple[str, ...]) -> list[str]:
    """Names without case, spaces and signs."""
    return ["".join(filter(str.isalnum, name)).lower() for name in names]


def _split(images: Any, labels: Any) -> Split:
    """[n, h, w] or [n, h, w, c] pixels to [n, c, h, w]."""
    pixels = np.asarray(images)
    pixels = pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, 3, 1)
    return Split(pixels.astype(np.uint8), np.asarray(labels).astype(np.int64))


def _reader(name: str, **extra: Any) -> Callable[[Path, bool], Split]:
    def read(root: Path, train: bool) -> Split:
        from torchvision import datasets

        images = getattr(datasets, name)(root, train=train, download=False, **extra)
        return _split(images.data, images.targets)

    return read


def _read_emnist_letters(root: Path, train: bool) -> Split:
    """EMNIST lies on its side, and its letters count from 1."""
    split = _reader("EMNIST", split="letters")(root, train)
    upright: Array = np.ascontiguousarray(split.images.transpose(0, 1, 3, 2))
    return Split(upright, split.labels - 1)


def _read_svhn(root: Path, train: bool) -> Split:
    try:
        from torchvision import datasets

        images = datasets.SVHN(root, split="train" if train else "test", download=False)
    except ModuleNotFoundError:
        raise DataError("data svhn: its .mat files are read through scipy: pip install scipy") from None
    # torchvision has turned SVHN to [n, c, h, w] already; `_split` expects channels last.
    return _split(np.moveaxis(images.data, 1, 3), images.labels)


FASHION = (
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
DIGITS = tuple("0123456789")
# fmt: off
CIFAR100 = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle",
    "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle",
    "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup",
    "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house",
    "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man",
    "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange", "orchid",
    "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
    "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew",
    "skunk", "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower",
    "sweet_pepper", "table", "tank", "telephone", "television", "tiger", "tractor", "train", "trout",
    "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm",
)
# fmt: on
GREY28, COLOUR32 = (1, 28, 28), (3, 32, 32)
CIFAR10_STATISTICS: Statistics = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
# KDIA's constants. CIFAR-10 above and EMNIST below have those of FedKF.
CINIC_STATISTICS: Statistics = ((0.47890, 0.47228, 0.43047), (0.24206, 0.23828, 0.25875))


@data_source
def mnist(folder: Path) -> Source:
    """MNIST, 1x28x28, 10 digits (LeCun et al. 1998)."""
    statistics: Statistics = ((0.1307,), (0.3081,))
    read = _reader("MNIST")
    return ImageSet("mnist", ("MNIST/raw/*",), read, GREY28, DIGITS, statistics).source(folder)


@data_source
def fashion_mnist(folder: Path) -> Source:
    """Fashion-MNIST, 1x28x28, 10 kinds of clothing (Xiao et al. 2017)."""
    statistics: Statistics = ((0.2860,), (0.3530,))
    read = _reader("FashionMNIST")
    kinds = ImageSet("fashion_mnist", ("FashionMNIST/raw/*",), read, GREY28, FASHION, statistics)
    return kinds.source(folder)


@data_source
def emnist_letters(folder: Path) -> Source:
    """EMNIST letters, 1x28x28, upright, 26 classes (Cohen et al. 2017).

    From torchvision's files only: Parquet copies differ in how the letters lie and count.
    """
    statistics: Statistics = ((0.1739,), (0.3170,))
    names = tuple("abcdefghijklmnopqrstuvwxyz")
    patterns = ("EMNIST/raw/emnist-letters-*",)
    letters = ImageSet("emnist_letters", patterns, _read_emnist_letters, GREY28, names, statistics, None)
    return letters.source(folder)


@data_source
def svhn(folder: Path) -> Source:
    """SVHN, 3x32x32, 10 digits (Netzer et al. 2011); its .mat files need scipy."""
    statistics: Statistics = ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))
    patterns = ("train_32x32.mat", "test_32x32.mat")
    return ImageSet("svhn", patterns, _read_svhn, COLOUR32, DIGITS, statistics).source(folder)


@data_source
def cifar10(folder: Path) -> Source:
    """CIFAR-10, 3x32x32 (Krizhevsky 2009)."""
    patterns = ("cifar-10-batches-py/*",)
    set10 = ImageSet("cifar10", patterns, _reader("CIFAR10"), COLOUR32, CIFAR10, CIFAR10_STATISTICS)
    return set10.source(folder)


@data_source
def cifar100(folder: Path) -> Source:
    """CIFAR-100, 3x32x32, fine labels (Krizhevsky 2009)."""
    statistics: Statistics = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
    patterns, read = ("cifar-100-python/*",), _reader("CIFAR100")
    set100 = ImageSet("cifar100", patterns, read, COLOUR32, CIFAR100, statistics, "fine_label")
    return set100.source(folder)


@data_source
def cinic10(folder: Path) -> Source:
    """CINIC-10, 3x32x32, from its folders train, valid and test with one folder a class (Darlow et al. 2018).

    Training images are those of train; valid is not used.
    """
    root = next((r for r in (folder / "cinic10", folder) if (r / "train" / CIFAR10[0]).is_dir()), None)
    if root is None:
        raise DataError(
            f"data cinic10 is not in {folder.resolve()}: looked there and in its folder cinic10 for "
            f"train/{CIFAR10[0]}/*.png; expected train, valid and test with one folder a class. "
            f"Set data.folder or RAYFED_KD_DATA to where it lies."
        )
    parts = {
        part: [sorted((root / part / name).glob("*.png")) for name in CIFAR10] for part in ("train", "test")
    }
    empty = [f"{part}/{CIFAR10[i]}" for part, files in parts.items() for i in range(10) if not files[i]]
    if empty:
        raise DataError(f"data cinic10 in {root}: no *.png in {', '.join(empty[:3])} ({len(empty)} folders)")

    def decode() -> RawDataset:
        train, test = _of_folders(parts["train"]), _of_folders(parts["test"])
        return RawDataset(train, test, CIFAR10, *CINIC_STATISTICS)

    files = tuple(file for part in parts.values() for of_class in part for file in of_class)
    return Source(files, {"layout": "folders"}, decode)


def _of_folders(parts: list[list[Path]]) -> Split:
    """The images of one list of files a class."""
    files = [file for of_class in parts for file in of_class]
    labels = np.repeat(np.arange(len(parts), dtype=np.int64), [len(of_class) for of_class in parts])
    images = np.empty((len(files), *COLOUR32), dtype=np.uint8)
    for index, pixels in enumerate(decode_images(files, "")):
        if pixels.shape[1:] != COLOUR32[1:]:
            raise DataError(f"{files[index]}: an image of {pixels.shape}, expected {COLOUR32}")
        images[index] = pixels  # some of ImageNet's are grey: one channel fills three
    return Split(images, labels)
