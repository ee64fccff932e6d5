"""Texts of a user's own: how words become numbers, and what is broken in one message."""

import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayfed_kd.data.loading import load_dataset
from rayfed_kd.data.sources.own_table import tokens_of
from rayfed_kd.errors import DataError, RecipeError

pytestmark = pytest.mark.usefixtures("own_cache")

ROWS = [
    ("A good, good day", "pos", "ann", 2019),
    ("bad\nday", "neg", "bob", 2020),
    ("2021", "pos", "ann", 2020),
]
COLUMNS = ["text", "label", "author", "year"]


def write_csv(file, rows=ROWS):
    lines = [",".join(COLUMNS), *(f'"{text}",{label},{author},{year}' for text, label, author, year in rows)]
    file.write_text("\n".join(lines))


def write_parquet(file, rows=ROWS):
    pq.write_table(pa.table(dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))), file)


def number(word, vocabulary):
    return 1 + zlib.crc32(word.encode()) % (vocabulary - 1)


@pytest.mark.parametrize(("file", "write"), [("train.csv", write_csv), ("train.parquet", write_parquet)])
def test_words_and_marks_are_numbered_by_a_hash_and_padded_with_0(tmp_path, file, write):
    write(tmp_path / file)
    data = load_dataset("text", tmp_path, options={"train": file, "length": 4, "vocabulary": 100})
    expected = [["a", "good", ",", "good"], ["bad", "day"], ["2021"]]
    for row, words in zip(data.train.images.tolist(), expected, strict=True):
        assert row == [number(word, 100) for word in words] + [0] * (4 - len(words))
    assert (data.shape, data.shape.vocabulary, data.train.images.dtype) == ((4,), 100, np.int64)
    assert (data.class_names, data.train.labels.tolist()) == (("neg", "pos"), [1, 0, 1])


def test_other_columns_are_kept_for_partitions_and_clients_have_a_column(tmp_path):
    write_csv(tmp_path / "train.csv")
    data = load_dataset("text", tmp_path, options={"client_column": "author"})
    assert {name: values.tolist() for name, values in data.columns.items()} == {
        "author": [0, 1, 0],
        "year": [0, 1, 1],
    }
    assert data.writers.tolist() == [0, 1, 0]


def test_a_test_file_and_a_drawn_test_part(tmp_path):
    write_csv(tmp_path / "train.csv", ROWS * 4)
    write_csv(tmp_path / "test.csv", ROWS[:2])
    named = load_dataset("text", tmp_path, options={"test": "test.csv", "length": 3})
    assert (len(named.train), len(named.test)) == (12, 2)
    drawn = load_dataset("text", tmp_path, options={"test_fraction": 0.25, "length": 3})
    assert np.bincount(drawn.test.labels).tolist() == [1, 2]
    assert len(drawn.train) == len(drawn.columns["author"]) == 9
    with pytest.raises(RecipeError, match=r"data\.test is given; expected 0"):
        load_dataset("text", tmp_path, options={"test": "test.csv", "test_fraction": 0.5})


def test_a_token_is_never_padding():
    rows = tokens_of(["a b c d e f g h"] * 2, 8, 2)
    assert rows.tolist() == [[1] * 8] * 2


def numbers_for_texts(folder):
    write_parquet(folder / "train.parquet", [(1, "a", "b", 2)])
    return {"train": "train.parquet"}


def no_column(folder):
    write_csv(folder / "train.csv")
    return {"text_column": "txt"}


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (numbers_for_texts, "column 'text' holds numbers, expected texts"),
        (no_column, "data.text_column = 'txt'.*Did you mean text"),
    ],
)
def test_what_is_broken_is_one_message(tmp_path, prepare, message):
    with pytest.raises(DataError, match=message):
        load_dataset("text", tmp_path, options=prepare(tmp_path))
