"""Texts of a user's own: a column of a CSV or Parquet file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from rayfed_kd.data.dataset import Array, RawDataset, Source
from rayfed_kd.data.sources.columns import meaning
from rayfed_kd.data.sources.csv_files import CsvForm, Encoding, Separator
from rayfed_kd.data.sources.own_images import SplitSeed, TestFraction, own_file
from rayfed_kd.data.sources.tables import column_of, present, read_labelled
from rayfed_kd.data.sources.tokens import tokens_of
from rayfed_kd.errors import DataError, RecipeError, shown
from rayfed_kd.recipe.roles import data_source
from rayfed_kd.recipe.sample_shapes import TextShape

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
    files = table_files(folder, train, test, test_fraction)
    form = CsvForm(separator, encoding)

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


def table_files(folder: Path, train: str, test: str | None, test_fraction: float) -> list[Path]:
    """The training file, and the test file where there is one.

    Raises: DataError if one is not there, RecipeError for a test file and a fraction beside it.
    """
    if test is not None and test_fraction:
        raise RecipeError("data.test is given; expected 0", path="data.test_fraction")
    files = [own_file(folder, train, "data.train")]
    return files if test is None else [*files, own_file(folder, test, "data.test")]
