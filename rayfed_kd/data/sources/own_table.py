"""Tables of a user's own, CSV or Parquet: columns of numbers and categories, or one of images or of texts.

Texts become token numbers by a hash that needs no file.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from rayfed_kd.data.dataset import Array, RawDataset, Source, check_size
from rayfed_kd.data.sources.classes import PLAIN_NUMBER
from rayfed_kd.data.sources.columns import CATEGORIES, NUMBERS, distinct_values, meaning
from rayfed_kd.data.sources.csv_files import CsvForm, Decimal, Encoding, NullValues, Separator, Thousands
from rayfed_kd.data.sources.features import Rows, feature_columns, refuse_stray_text
from rayfed_kd.data.sources.own_images import SplitSeed, TestFraction, own_file
from rayfed_kd.data.sources.pixels import Colour, Fit, Fitting, Size, load_images
from rayfed_kd.data.sources.tables import (
    LabelledTables,
    column_of,
    is_parquet,
    parsed,
    present,
    read_labelled,
)
from rayfed_kd.errors import DataError, RecipeError, setting, shown
from rayfed_kd.recipe.roles import data_source
from rayfed_kd.recipe.sample_shapes import TextShape

_TOKENS = re.compile(r"\w+|[^\w\s]")


def tokens_of(texts: Sequence[str], length: int, vocabulary: int) -> Array:
    """Words and marks, in lower case, as numbers from 1: by a hash, so that some share a number.

    Args:
        texts: n of them.
        length: tokens of every row; longer texts are cut, shorter ones padded by 0, at their end.
        vocabulary: number of token numbers, padding included; at least 2.
    Returns: [n, length] int64.
    """
    check_size("tokens of all texts", (len(texts), length), 8)
    tokens = np.zeros((len(texts), length), dtype=np.int64)
    known: dict[str, int] = {}
    for row, text in enumerate(texts):
        for place, word in enumerate(_TOKENS.findall(text.lower())[:length]):
            if word not in known:
                # CRC-32 is the same in every process and on every machine, unlike Python's own hash.
                known[word] = 1 + zlib.crc32(word.encode()) % (vocabulary - 1)
            tokens[row, place] = known[word]
    return tokens


MOST_TOKENS = 1_000_000  # of a text, and of a vocabulary: beyond it a number is a slip

TrainFile = Annotated[
    str, Field(min_length=1, description="the file (.csv or .parquet), below the folder or absolute")
]
TestFile = Annotated[str | None, Field(min_length=1, description="the official test set's file; null: none")]
LabelColumn = Annotated[str, Field(description="the column of classes: texts or whole numbers")]
ClientColumn = Annotated[
    str | None, Field(description="each row's natural client, for the partition `natural`; null: none")
]
Length = Annotated[
    int, Field(ge=1, le=MOST_TOKENS, description="tokens of a text; longer ones are cut, shorter ones padded")
]
Vocabulary = Annotated[int, Field(ge=2, le=MOST_TOKENS, description="numbers that words are hashed to")]


@data_source
def tabular(
    folder: Path,
    *,
    train: TrainFile = "train.csv",
    test: TestFile = None,
    label_column: LabelColumn = "label",
    numeric: Annotated[
        list[str] | None, Field(description="the columns of numbers; null: all that hold numbers or times")
    ] = None,
    categorical: Annotated[
        list[str] | None,
        Field(
            description="the columns of categories; null: all that hold texts, categories or true and false"
        ),
    ] = None,
    client_column: ClientColumn = None,
    leave_out: Annotated[
        list[str], Field(description="columns that are no features; partitions may go by them")
    ] = [],  # noqa: B006 - never changed
    categories: Annotated[
        Literal["one_hot", "codes"],
        Field(description="0 and 1 for each category, for any model of numbers; or codes, for `row_mlp`"),
    ] = "one_hot",
    missing: Annotated[
        Literal["refuse", "mean"],
        Field(description="of numbers that are missing: an error, or the training rows' mean"),
    ] = "refuse",
    image_column: Annotated[
        str | None, Field(description="a column of image files, relative to the table, instead of features")
    ] = None,
    size: Size = None,
    fit: Fit = "crop",
    colour: Colour = "rgb",
    separator: Separator = ",",
    encoding: Encoding = "utf-8",
    decimal: Decimal = ".",
    thousands: Thousands = None,
    null_values: NullValues = [],  # noqa: B006 - never changed
    test_fraction: TestFraction = 0.0,
    split_seed: SplitSeed = 0,
) -> Source:
    """A CSV or Parquet file with a column of classes, and columns of numbers and of categories, or of images.

    Numbers are standardised by the training rows: less their mean, over their deviation. Each value of a
    column of categories is one; a missing text is a category, too. What only test rows have is unseen: zeros,
    or code 0. Times are numbers.
    """
    of_images = {"size": size is not None, "fit": fit != "crop", "colour": colour != "rgb"}
    of_features = {"numeric": numeric, "categorical": categorical, "missing": missing != "refuse"}
    given = of_images if image_column is None else {**of_features, "categories": categories != "one_hot"}
    if idle := [key for key, changed in given.items() if changed]:
        why = "images have no features" if image_column else "only images have it, by data.image_column"
        raise RecipeError(why, path=f"data.{idle[0]}")
    if twice := {*leave_out} & {*(numeric or ()), *(categorical or ())}:
        raise RecipeError(f"{min(twice)} is listed as a feature as well", path="data.leave_out")
    form = CsvForm(separator, encoding, decimal, thousands, tuple(null_values))
    files = table_files(folder, train, test, test_fraction, form)
    others = [] if client_column is None else [client_column]
    # Texts first: 01 and 1 are two categories, 1 and 1.0 are one.
    texts = (categorical or ()) if image_column is None else [image_column]
    # Images are files that decide about the cache as the table does, so their names are read at once.
    images = {} if image_column is None else {file: _images_of(file, form, image_column) for file in files}

    def decode() -> RawDataset:
        read = read_labelled(files, form, label_column, others, (test_fraction, split_seed), texts)
        for name in leave_out:
            present(read.files[0], read.tables[0], name, "data.leave_out")
        if image_column is not None:
            fitting = Fitting(size, fit, colour)
            samples = read.parts([load_images(images[file], images[file], fitting) for file in read.files])
            return read.dataset(samples, [label_column, image_column], client_column)
        apart = [label_column, *others, *leave_out]
        chosen = chosen_columns(read, numeric, categorical, apart, form)
        rows = Rows(read, form, missing == "mean")
        return rows.dataset(*chosen, label_column, client_column, categories)

    return Source((*files, *(image for part in images.values() for image in part)), {}, decode)


csv = tabular  # the same, by the name that most look for


def _images_of(file: Path, form: CsvForm, name: str) -> list[Path]:
    """The image files that a column names, by row."""
    table = parsed(file, form, [name])
    present(file, table, name, "data.image_column")
    paths = [file.parent / str(entry) for entry in column_of(file, table, name).to_pylist()]
    missing = next((row for row, path in enumerate(paths) if not path.is_file()), None)
    if missing is not None:
        raise DataError(f"{file}, row {missing + 1}: no file {paths[missing].resolve()}")
    if not paths:
        raise DataError(f"{file}: no rows below the names of columns")
    return paths


def chosen_columns(
    read: LabelledTables,
    numeric: Sequence[str] | None,
    categorical: Sequence[str] | None,
    apart: Sequence[str],
    form: CsvForm,
) -> tuple[list[str], list[str]]:
    """The columns of numbers and those of categories.

    Args:
        numeric, categorical: those that the recipe lists; None: all others that hold such values.
        apart: columns that are no features.
        form: how CSV files are written.
    Raises: RecipeError if one is listed twice, DataError if there is none or one is neither.
    """
    listed = [*(numeric or ()), *(categorical or ())]
    free = {name: what for name, what in feature_columns(read, apart, listed).items() if name not in listed}
    numbers = list(numeric) if numeric is not None else [n for n in free if free[n] in NUMBERS]
    groups = list(categorical) if categorical is not None else [n for n in free if free[n] in CATEGORIES]
    for name in groups if categorical is None else ():
        if free[name] == "texts":
            table = read.tables[0]
            more = f", {setting('data.categorical', groups)} keeps the texts"
            refuse_stray_text(read.files[0], table, name, form, more)
            values, _ = distinct_values(table.column(name))
            if all(PLAIN_NUMBER.fullmatch(value.strip()) for value in values if value):
                read.notes.append(
                    f"the column {shown(name)} has texts, all of them numbers, which are read as categories"
                )
    odd = [name for name, what in free.items() if what not in (*NUMBERS, *CATEGORIES)]
    if odd and (numeric is None or categorical is None):
        raise DataError(
            f"{read.files[0]}: the column {shown(odd[0])} holds {free[odd[0]]}; expected numbers, times, "
            f"texts, categories or true and false. {setting('data.leave_out', [odd[0]])} leaves it out"
        )
    if twice := [name for name, count in Counter([*numbers, *groups]).items() if count > 1]:
        raise RecipeError(f"{shown(twice[0])} is listed twice, here or in data.numeric", "data.categorical")
    if idle := [shown(name) for name in free if name not in (*numbers, *groups)]:
        read.notes.append(f"columns that are left out, as others are listed: {'; '.join(idle)}")
    if not numbers and not groups:
        raise DataError(
            f"{read.files[0]}: no column of numbers or categories beside {', '.join(apart)}"
            f"{'; '.join(['', *read.notes])}"
        )
    return numbers, groups


@data_source
def text(
    folder: Path,
    *,
    train: TrainFile = "train.csv",
    test: TestFile = None,
    text_column: Annotated[str, Field(description="the column of texts")] = "text",
    label_column: LabelColumn = "label",
    client_column: ClientColumn = None,
    length: Length = 64,
    vocabulary: Vocabulary = 8192,
    separator: Separator = ",",
    encoding: Encoding = "utf-8",
    test_fraction: TestFraction = 0.0,
    split_seed: SplitSeed = 0,
) -> Source:
    """A CSV or Parquet file with a column of texts and a column of classes.

    Further columns of texts or whole numbers are kept for the partition `by_column`.
    """
    form = CsvForm(separator, encoding)
    files = table_files(folder, train, test, test_fraction, form)

    def decode() -> RawDataset:
        others = [] if client_column is None else [client_column]
        read = read_labelled(files, form, label_column, others, (test_fraction, split_seed), [text_column])
        tokens: list[Array] = []
        for file, table in zip(read.files, read.tables, strict=True):
            present(file, table, text_column, "data.text_column")
            what = meaning(table.schema.field(text_column))
            if what not in ("texts", "categories"):
                raise DataError(f"{file}: the column {shown(text_column)} holds {what}, expected texts")
            texts = column_of(file, table, text_column).to_pylist()
            tokens.append(tokens_of(list(map(str, texts)), length, vocabulary))
        used = [text_column, label_column]
        return read.dataset(read.parts(tokens), used, client_column, TextShape(length, vocabulary))

    return Source(files, {}, decode)


def table_files(
    folder: Path, train: str, test: str | None, test_fraction: float, form: CsvForm
) -> list[Path]:
    """The training file, and the test file where there is one.

    Raises: DataError if one is not there, RecipeError for a test file and a fraction beside it, and for a
    form of CSV beside Parquet alone.
    """
    if test is not None and test_fraction:
        raise RecipeError("data.test is given; expected 0", path="data.test_fraction")
    files = [own_file(folder, train, "data.train")]
    files += [] if test is None else [own_file(folder, test, "data.test")]
    of_csv = [key for key, value in asdict(form).items() if value != getattr(CsvForm, key)]
    if of_csv and all(map(is_parquet, files)):
        raise RecipeError(f"{files[0].name} is Parquet; expected no form of CSV", path=f"data.{of_csv[0]}")
    return files
