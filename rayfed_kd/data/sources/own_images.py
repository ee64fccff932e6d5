"""Images of a user's own, one file each: a folder with a subfolder for each class; what own files share."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from PIL import Image
from pydantic import Field

from rayfed_kd.data.dataset import Array, RawDataset, Source, Split, check_size, of_each_class
from rayfed_kd.data.sources.image_tree import image_tree
from rayfed_kd.data.sources.parquet import decode_image
from rayfed_kd.errors import DataError, RecipeError, nearest, shown
from rayfed_kd.files import path_fault
from rayfed_kd.recipe.roles import data_source
from rayfed_kd.recipe.seeds import numpy_stream

MOST_SIDE = 4096

Part = Annotated[
    str | None,
    Field(
        min_length=1, description="its folder below data.folder; `.`: that itself; null: known by its name"
    ),
]
Size = Annotated[
    int | None, Field(ge=1, le=MOST_SIDE, description="side of the square images; null: as the files are")
]
Fit = Annotated[
    Literal["crop", "stretch"],
    Field(description="the shorter side gets `size` and the middle is cut out, or both sides get it"),
]
Colour = Annotated[Literal["rgb", "grey"], Field(description="three channels or one")]
TestFraction = Annotated[
    float, Field(ge=0, lt=1, description="share of each class that is set apart as the official test set")
]
SplitSeed = Annotated[int, Field(ge=0, description="seed of that draw, apart from the run's")]


@data_source
def image_folder(
    folder: Path,
    *,
    train: Part = None,
    test: Part = None,
    size: Size = None,
    fit: Fit = "crop",
    colour: Colour = "rgb",
    test_fraction: TestFraction = 0.0,
    split_seed: SplitSeed = 0,
) -> Source:
    """Image files in one folder for each class, as torchvision's ImageFolder has them.

    `data.folder` has the classes' folders, or parts as `train` and `test` that have them. Hidden files and
    other files than images are left out.
    """
    if not folder.is_dir():
        raise DataError(
            f"data.folder: no folder {folder.resolve()}; expected one with a folder for each class"
        )
    tree = image_tree(folder, train, test)
    names = tuple(tree.train)
    if tree.test and test_fraction:
        raise RecipeError(f"{folder} has a folder test; expected 0", path="data.test_fraction")

    def decode() -> RawDataset:
        training, notes = _split(tree.train, names, size, fit, colour), tuple(tree.notes)
        if tree.test:
            return RawDataset(training, _split(tree.test, names, size, fit, colour), names, notes=notes)
        return RawDataset(*held_out(training, test_fraction, split_seed), names, notes=notes)

    every = tuple(file for part in (tree.train, tree.test) for own in part.values() for file in own)
    # The names, because files keep their content when their folders are renamed; the notes, because what is
    # left out is not among the files.
    settings = {"names": names, "count": sum(map(len, tree.train.values())), "notes": tree.notes}
    return Source(every, settings, decode)


def _split(
    files: Mapping[str, Sequence[Path]], names: Sequence[str], size: int | None, fit: str, colour: str
) -> Split:
    labels = [names.index(name) for name, own in files.items() for _ in own]
    every = [file for own in files.values() for file in own]
    return Split(load_images(every, size, fit, colour), np.array(labels, np.int64))


def load_images(files: Sequence[Path], size: int | None, fit: str, colour: str) -> Array:
    """Image files as pixels.

    Args:
        files: at least one.
        size: side of the squares that they become; None: all are of one size already.
        fit: `crop` or `stretch`, as the recipe has it.
        colour: `rgb` or `grey`.

    Returns: [n, c, h, w] uint8.
    Raises: DataError naming a file that is no image or of another size.
    """
    first = _pixels(files[0], size, fit, colour)
    shape = (len(files), *first.shape)
    check_size(f"{len(files)} images", shape, 1)
    images = np.empty(shape, np.uint8)

    def load(place: int) -> None:
        pixels = _pixels(files[place], size, fit, colour)
        if pixels.shape != first.shape:
            raise DataError(
                f"{files[place]}: an image of {pixels.shape[2]} x {pixels.shape[1]} pixels, those before are "
                f"{first.shape[2]} x {first.shape[1]}; data.size=32 makes all of one size"
            )
        images[place] = pixels

    with ThreadPoolExecutor() as pool:
        for _ in pool.map(load, range(len(files))):  # raises what a thread raised, the first file's first
            pass
    return images


def _pixels(file: Path, size: int | None, fit: str, colour: str) -> Array:
    decoded = decode_image(file, "")
    picture = Image.fromarray(decoded[0] if len(decoded) == 1 else np.moveaxis(decoded, 0, 2))
    picture = picture.convert("L" if colour == "grey" else "RGB")
    if size is not None and fit == "stretch":
        picture = picture.resize((size, size), Image.Resampling.BILINEAR)
    elif size is not None:
        scale = size / min(picture.size)
        width, height = (max(size, round(side * scale)) for side in picture.size)
        left, top = (width - size) // 2, (height - size) // 2
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        picture = picture.crop((left, top, left + size, top + size))
    pixels = np.asarray(picture)
    return pixels[None] if colour == "grey" else np.moveaxis(pixels, 2, 0)


def held_out(samples: Split, fraction: float, seed: int) -> tuple[Split, Split | None]:
    """A training and a test part of samples, as `held_out_rows` draws them."""
    test = held_out_rows(samples.labels, fraction, seed)
    if test is None:
        return samples, None
    return Split(samples.images[~test], samples.labels[~test]), Split(
        samples.images[test], samples.labels[test]
    )


def held_out_rows(labels: Array, fraction: float, seed: int) -> Array | None:
    """Which samples are for the test, [n] bool: floor(fraction n_c) of each class of n_c samples.

    Args:
        labels: [n] int64.
        fraction: below 1; 0: there is no test part.
        seed: of the draw.

    Returns: None where there is no test part.
    Raises: RecipeError if no class has enough samples for one.
    """
    if not fraction:
        return None
    test = np.zeros(len(labels), bool)
    test[of_each_class(labels, fraction, numpy_stream(seed, "official test set"))] = True
    if not test.any():
        raise RecipeError(f"{fraction:g} of each class is no sample", path="data.test_fraction")
    return test


def own_file(folder: Path, name: str, option: str) -> Path:
    """The path of a file that a recipe names.

    Args:
        folder: data.folder.
        name: below it, or absolute.
        option: the recipe's key that has the name.

    Raises: DataError if there is no such file.
    """
    if fault := path_fault(name):
        raise DataError(f"{option}: {fault}")
    path = folder / name
    if path.is_file():
        return path
    siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    near = nearest(path.name, siblings) or next(iter(_below(folder, path.name)), None)
    hint = f" Did you mean {near}?" if near else ""
    raise DataError(
        f"{option} = {shown(name)}: no file {path.resolve()}; data.folder says where it lies.{hint}"
    )


def _below(folder: Path, name: str) -> list[str]:
    """Files of this name one level down."""
    return [str(path.relative_to(folder)) for path in sorted(folder.glob(f"*/{glob.escape(name)}"))]
