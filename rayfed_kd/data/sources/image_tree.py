"""Folders of images: which folder is which part, which file is of which class, and what is left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from rayfed_kd.errors import DataError, did_you_mean, in_words, shortened, shown

# Those of torchvision.datasets.ImageFolder.
SUFFIXES = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}
PARTS = {
    "train": {"train", "training"},
    "test": {"test", "testing"},
    "validation": {"val", "valid", "validation"},
}
# What a part's name may have beside that, as training_set and seg_train have.
BESIDE = {"set", "data", "dataset", "image", "images", "img", "imgs", "seg", "split", "folder"}
HIDDEN = ("__macosx", "@eadir", "thumbs.db", "desktop.ini")  # of macOS, Synology and Windows
WHOLE = "."  # the part that is data.folder itself


Files = dict[str, list[Path]]  # of each class


def image_tree(folder: Path, train: str | None, test: str | None) -> tuple[Files, Files, list[str]]:
    """Find the parts of a folder, and the files of each class.

    Args:
        folder: has folders of classes, or parts that have them.
        train, test: the parts' names below the folder; None: recognised by name, whatever the case.
    Returns: class -> its files, ascending, for training and for the test, where there is such a part; and
        notes of what was left out, and what the user should know.
    Raises: DataError if a part or a class has no images, or if a folder's name leaves open what it is.
    """
    folders = _folders(folder)
    train_name, test_name = _parts(folder, folders, train, test)
    if test is None and test_name is not None and not _folders(folder / test_name):
        test_name = None  # images without classes, as competitions have them
    notes, left_out = list[str](), Counter[str]()
    if train_name == WHOLE:
        classes = {name: path for name, path in folders.items() if name != test_name}
        trained = _files_by_class(folder, classes, left_out)
    else:
        unused = [name for name in folders if name not in (train_name, test_name)]
        if unused or (train_name, test_name) != ("train", "test"):
            rest = f", not used: {in_words(unused)}" if unused else ""
            notes.append(
                f"folders for training: {train_name}, for the test: {test_name or 'none'}{rest}; data.train "
                "and data.test name them"
            )
        if not _folders(folder / train_name):
            raise DataError(
                f"{folder / train_name} has no folders; expected one for each class, with images. If "
                f"{train_name} is a class itself, data.train={WHOLE} takes all folders as classes"
            )
        trained = _files_by_class(folder / train_name, _folders(folder / train_name), left_out)
    tested: Files = {}
    if test_name is not None:
        tested = _files_by_class(folder / test_name, _folders(folder / test_name), left_out, empty=True)
        if beyond := sorted(set(tested) - set(trained)):
            raise DataError(
                f"{folder / test_name}: the class {beyond[0]} has no folder in {folder / train_name}."
                f"{did_you_mean(beyond[0], trained)}"
            )
    if left_out:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(left_out.items()))
        notes.append(f"files that are left out: {kinds}")
    return trained, tested, notes


def _parts(
    folder: Path, folders: Mapping[str, Path], train: str | None, test: str | None
) -> tuple[str, str | None]:
    """The names of the training part and of the test part."""
    for name, option in ((train, "data.train"), (test, "data.test")):
        if name not in (None, WHOLE) and not (folder / str(name)).is_dir():
            raise DataError(f"{option} = {shown(name)}: there is no folder {(folder / str(name)).resolve()}")
    fitting = {part: [name for name in folders if _part_named(name) == part] for part in PARTS}
    for option, chosen in (("train", train), ("test", test)):
        if chosen is None and train != WHOLE and len(fitting[option]) > 1:
            raise DataError(
                f"{folder}: {in_words(fitting[option])} may be the {option} part; data.{option} says which is"
            )
    if train is None and not fitting["train"]:
        if named := [name for name in (*fitting["test"], *fitting["validation"]) if name != test]:
            raise DataError(
                f"{folder}: the folder {named[0]} is named as a part of a data set, and there is no folder "
                f"train; data.train=NAME says which folder trains, data.train={WHOLE} that all are classes"
            )
        return WHOLE, test
    if train is None:
        train = fitting["train"][0]
    if test is None and train != WHOLE and fitting["test"]:
        test = fitting["test"][0]
    return train, test


def _folders(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in sorted(folder.iterdir()) if path.is_dir() and not _hidden(path.name)}


def _hidden(name: str) -> bool:
    return name.startswith(".") or name.casefold() in HIDDEN


def _part_named(name: str) -> str | None:
    """The part that a folder is named as, as train; None for other names."""
    words = set(filter(None, re.split(r"[^a-z]+", name.casefold())))
    return next((part for part, names in PARTS.items() if words & names and words <= names | BESIDE), None)


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def _files_by_class(
    part: Path, folders: Mapping[str, Path], left_out: Counter[str], *, empty: bool = False
) -> Files:
    """Class -> its image files, at any depth; both ascending.

    Args:
        part: for messages; files in it that are in no class's folder are left out.
        folders: of the classes.
        left_out: counts what is left out, by kind.
        empty: classes may have no image.
    Raises: DataError if there is no class, or one without images.
    """
    kinds = ", ".join(sorted(SUFFIXES))
    files: Files = {}
    for name, folder in folders.items():
        files[name] = list[Path]()
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(folder).parts
            if path.is_dir():
                if _part_named(path.name):
                    raise DataError(
                        f"{path} is named as a part of a data set, within {name}, which would be a class; "
                        "data.folder names the folder that has the parts, or the classes"
                    )
                left_out.update(["linked folder(s)"] * path.is_symlink())  # not followed
            elif any(map(_hidden, inside)):
                left_out["hidden"] += 1
            elif _is_image(path):
                files[name].append(path)
            else:
                left_out[path.suffix.lower() or "without suffix"] += 1
    loose = [path.name for path in part.iterdir() if path.is_file() and not _hidden(path.name)]
    left_out.update({"in no class's folder": len(loose)} if loose else {})
    if not files:
        raise DataError(
            f"{part.resolve()} has no folders; expected one for each class, with images ({kinds})"
        )
    if len(files) == 1 and len(inner := _folders(folder)) > 1 and not any(map(_is_image, folder.iterdir())):
        raise DataError(
            f"{part.resolve()} has one folder, {folder.name}, which would be the only class; data.folder="
            f"{folder} has the folders {shortened(', '.join(inner))}"
        )
    if not empty and (none := [name for name, images in files.items() if not images]):
        endings = Counter(path.suffix or path.name for path in folders[none[0]].rglob("*") if path.is_file())
        have = f", only {', '.join(f'{count} {kind}' for kind, count in endings.items())}" if endings else ""
        raise DataError(
            f"{folders[none[0]].resolve()} has no images ({kinds}){have}; every folder is a class"
        )
    return files
