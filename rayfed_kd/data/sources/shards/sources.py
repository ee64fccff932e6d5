"""The sources `parquet`, `arrow` and `webdataset`: one set of options, three kinds of files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from rayfed_kd.data.dataset import Array, RawDataset, Source, Split
from rayfed_kd.data.sources.classes import Labels, number_classes
from rayfed_kd.data.sources.own_images import SplitSeed, TestFraction, files_of, with_test
from rayfed_kd.data.sources.pixels import AnyColour, Fit, Fitting, Size, load_images
from rayfed_kd.data.sources.shards.readers import Names, Read, table_reader, tar_reader
from rayfed_kd.errors import DataError, setting, shortened
from rayfed_kd.recipe.roles import data_source

# Where repositories of Hugging Face have their files; the last two are configurations of CIFAR and SVHN.
HUB = (".", "data", "plain_text", "cropped_digits")
# How many shards there are, as Hugging Face writes it; older names end with a hash.
OF_SHARDS = re.compile(r"(.*)\d{5}-of-(\d{5})(?:-[0-9a-f]+)?\.\w+")

Pattern = Annotated[str, Field(min_length=1, description="path or glob, below the folder or absolute")]
TestPattern = Annotated[
    str | None, Field(min_length=1, description="path or glob of the test files; null: none")
]
Column = Annotated[
    str | None, Field(description="null: image or img; of tar files the ending, null: the only image's")
]
LabelColumn = Annotated[
    str | None,
    Field(description="null: label, labels or fine_label; of tar files an ending or json.KEY, null: cls"),
]


def numbered(
    splits: tuple[Split, Split | None],
) -> tuple[tuple[Split, Split | None], tuple[str, ...], list[str]]:
    """The same samples where no file has names: classes are numbered by the labels in training."""
    parts, splits_read = list[Labels](), [split for split in splits if split is not None]
    for split, where in zip(splits_read, ("training files", "test files"), strict=False):
        # Of several files some may have whole numbers and some texts.
        labels = split.labels if split.labels.dtype == np.int64 else split.labels.astype(str)
        distinct, places = np.unique(labels, return_inverse=True)
        parts.append(Labels(where, distinct.tolist(), places))
    codes, names, notes = number_classes(parts)
    numbered = [Split(split.images, numbers) for split, numbers in zip(splits_read, codes, strict=True)]
    return (numbered[0], numbered[1] if len(numbered) > 1 else None), names, notes


def decode_files(
    train: Sequence[Path], test: Sequence[Path], read: Read, fitting: Fitting
) -> tuple[tuple[Split, Split | None], Names]:
    """Images and labels of the training and the test files, and the class names that they say, if any.

    Args:
        train, test: files; test may be empty.
        read: reads a file.
        fitting: what images are made into.
    Raises: DataError if a file cannot be read, or two say different names.
    """
    trained, names = _decoded(train, read, fitting)
    if not test:
        return (trained, None), names
    tested, names = _decoded(test, read, fitting, trained.images.shape[1:], names)
    return (trained, tested), names


def _decoded(
    files: Sequence[Path], read: Read, fitting: Fitting, shape: Sequence[int] = (), names: Names = None
) -> tuple[Split, Names]:
    images, labels, named = list[Array](), list[Array](), set[bool]()
    for file in files:
        shard = read(file)
        named.add(bool(shard.names))
        if len(named) > 1:
            raise DataError(f"{file}: names of its classes are in some of the files alone; expected in all")
        if names and shard.names and names != shard.names:
            before, other = (shortened(", ".join(listed), 100) for listed in (names, shard.names))
            raise DataError(f"{file}: the classes are {other}; in the files before they are {before}")
        names = names or shard.names
        if len(shard.labels):
            keys = [
                f"{file}, {key}" for key in shard.keys or (f"row {row}" for row in range(len(shard.images)))
            ]
            images.append(load_images(shard.images, keys, fitting, shape))
            labels.append(shard.labels)
            shape = images[0].shape[1:]
    if not images:
        raise DataError(f"{files[0]}: no rows")
    return Split(np.concatenate(images), np.concatenate(labels)), names


def find_parts(
    folder: Path, usual: Sequence[str], train: str, test: str | None
) -> tuple[list[Path], list[Path], list[str]]:
    """The files that patterns name; the usual ones lie below the folder, or where a repository has them.

    Args:
        folder: data.folder.
        usual: the patterns of training, test and validation files where the recipe names none.
        train, test: the recipe's patterns; without files of the usual test pattern there is no test set.
    Returns: training files; test files, perhaps none; what the user should know.
    Raises: DataError if there are no files for training, or none of an asked-for test pattern.
    """
    folder = home(folder, train) if train == usual[0] else folder
    if train == usual[0] == "train/*.arrow" and (folder / "state.json").is_file():
        train = "*.arrow"  # one Dataset, whose samples all train
    train_files, test_files = files_of(folder, train, "data.train"), list[Path]()
    if test is not None:
        test_files = sorted(folder.glob(test)) if test == usual[1] else files_of(folder, test, "data.test")
    if both := {*train_files} & {*test_files}:
        raise DataError(
            f"{min(both)} trains and tests; expected another data.train or data.test, or data.test=null"
        )
    for pattern, chosen in ((train, train_files), (test or "", test_files)):
        _check_shards(chosen if "*" in pattern else ())
    if not set(folder.glob(usual[2])) - {*train_files, *test_files}:
        return train_files, test_files, []
    note = f"{usual[2]} is not used; {setting('data.test', usual[2])} makes it the test set"
    return train_files, test_files, [note]


def _check_shards(files: Iterable[Path]) -> None:
    """Raises: DataError if names of files say that there are more of them, or fewer."""
    named = [(file, wrote) for file in files if (wrote := OF_SHARDS.fullmatch(file.name))]
    groups = Counter((file.parent, wrote[1], wrote[2], file.suffix) for file, wrote in named)
    for (folder, stem, said, suffix), count in groups.items():
        if int(said) != count:
            raise DataError(
                f"{folder / stem}*{suffix}: their names say that there are {int(said)}; found {count}. A "
                "pattern without * takes just these"
            )


def home(folder: Path, pattern: str) -> Path:
    """The folder that has files of a pattern: the folder itself, or one in which repositories have them."""
    return next((folder / place for place in HUB if any((folder / place).glob(pattern))), folder)


def _source(doc: str, reader: Callable[[str | None, str | None], Read], *usual: str) -> Callable[..., Source]:
    """A data source of shards.

    Args:
        doc: the source's docstring.
        reader: (image column, label column) -> a function that reads a file.
        usual: the patterns of training, test and validation files.
    """

    def source(
        folder: Path,
        *,
        train: Pattern = usual[0],
        test: TestPattern = usual[1],
        image_column: Column = None,
        label_column: LabelColumn = None,
        size: Size = None,
        fit: Fit = "crop",
        colour: AnyColour = None,
        test_fraction: TestFraction = 0.0,
        split_seed: SplitSeed = 0,
    ) -> Source:
        train_files, test_files, notes = find_parts(folder, usual, train, test)
        read = reader(image_column, label_column)

        def decode() -> RawDataset:
            splits, names = decode_files(train_files, test_files, read, Fitting(size, fit, colour))
            more = list[str]()
            if names is None:
                splits, names, more = numbered(splits)
            splits = with_test(*splits, test_fraction, split_seed)
            return RawDataset(*splits, names, notes=(*notes, *more))

        return Source((*train_files, *test_files), {"notes": notes}, decode)

    source.__doc__ = doc
    return data_source(source)


parquet = _source(
    """Any Parquet files in the Hugging Face image layout: struct(bytes, path) or bytes, and a label.

    The default patterns are looked for below `data.folder`, then in its folder `data`, `plain_text` or
    `cropped_digits`. Without files of the default test pattern there is no official test set; a pattern that
    was asked for must name some.
    """,
    table_reader,
    *("train-*.parquet", "test-*.parquet", "validation-*.parquet"),
)
arrow = _source(
    """A folder that `save_to_disk` of Hugging Face's `datasets` wrote, of a DatasetDict or of one Dataset.

    All samples of one Dataset are for training. The options are those of `parquet`.
    """,
    table_reader,
    *("train/*.arrow", "test/*.arrow", "validation/*.arrow"),
)
webdataset = _source(
    """WebDataset shards: tar files with an image and a label, as 000001.jpg and 000001.cls, for each sample.

    Without cls the label is the JSON's key label, labels or fine_label. The patterns are looked for as those
    of `parquet`.
    """,
    tar_reader,
    *("*train*.tar", "*test*.tar", "*val*.tar"),
)
