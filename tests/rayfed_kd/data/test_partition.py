"""A partition is drawn, split, saved and read again; a wrong file or scheme is told."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from partitions import make_partition, partition_of

from rayfed_kd.data.partition import SCHEMES, Partition, Pool
from rayfed_kd.errors import DataError, RecipeError

NONE = np.zeros(0, dtype=np.int64)


def stream(seed=1):
    return np.random.default_rng(seed)


def pool_of(samples, classes=5):
    return Pool(np.arange(samples) % classes, classes)


def write(path, client, split, sample, meta=None):
    table = pa.table({"client": client, "split": split, "sample": sample})
    pq.write_table(table.replace_schema_metadata(meta and {"rayfed_kd": json.dumps(meta)}), path)
    return path


def lists(parts):
    return [part.tolist() for part in parts]


def test_local_split_keeps_a_fifth_for_the_test():
    partition = make_partition(pool_of(100), 4, "iid", {}, stream())
    assert [len(part) for part in partition.test] == [5, 5, 5, 5]
    assert partition.sizes.tolist() == [20, 20, 20, 20]


@pytest.mark.parametrize(("size", "held"), [(1, 0), (2, 1), (3, 2), (10, 9)])
def test_one_sample_stays_to_train_on(size, held):
    """round(0.99 n) is n for these: one less is held back."""
    partition = make_partition(pool_of(size), 1, "iid", {}, stream(), test_fraction=0.99)
    assert (len(partition.train[0]), len(partition.test[0])) == (size - held, held)


def test_counts_are_of_both_parts_by_class():
    partition = partition_of((np.array([0, 1]), np.array([2])), (np.array([3]), NONE))
    assert partition.counts(np.array([0, 1, 1, 1]), 3).tolist() == [[1, 2, 0], [0, 1, 0]]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([[0, 1], [1, 2]], "sample 1 is given 2 times, expected once"),
        ([[0, 1, 2]], "it gave 1 clients, expected 2"),
        ([[[0, 1]], [[2, 3]]], "client 0 has 0 to 1 (int64 [1, 2]), expected sample indices from 0 to 4"),
        ([[0], [3, 30]], "client 1 has 3 to 30 (int64 [2]), expected sample indices from 0 to 4"),
    ],
)
def test_own_scheme_that_is_wrong_is_told(monkeypatch, parts, message):
    monkeypatch.setattr(SCHEMES, "find", lambda *_: lambda *given: parts)
    with pytest.raises(RecipeError) as told:
        make_partition(pool_of(5), 2, "mine:scheme", {}, stream())
    assert str(told.value) == f"partition.name = 'mine:scheme': {message}"


def test_own_scheme_may_give_lists_in_any_order(monkeypatch):
    monkeypatch.setattr(SCHEMES, "find", lambda *_: lambda *given: [[2, 0], []])
    partition = make_partition(pool_of(5), 2, "mine:scheme", {}, stream(), test="official")
    assert (lists(partition.train), partition.train[1].dtype) == ([[0, 2], []], np.int64)


@pytest.mark.parametrize("test", ["local", "official"])
def test_saved_partition_comes_back(tmp_path, test):
    partition = make_partition(pool_of(50), 6, "dirichlet", {"alpha": 0.1}, stream(), test=test)
    partition.save(tmp_path / "p.parquet")
    again = Partition.load(tmp_path / "p.parquet", 50)
    assert [lists(again.train), lists(again.test)] == [lists(partition.train), lists(partition.test)]
    assert again.origin == {"scheme": "dirichlet", "options": {"alpha": 0.1}, "test": test, "samples": 50}
    assert [path.name for path in tmp_path.iterdir()] == ["p.parquet"]


def test_saved_clients_without_samples_come_back(tmp_path):
    partition_of((NONE, np.array([1]), NONE), (NONE, NONE, NONE)).save(tmp_path / "p.parquet")
    assert lists(Partition.load(tmp_path / "p.parquet", 5).train) == [[], [1], []]


def test_saved_columns_are_an_interface(tmp_path):
    make_partition(pool_of(5), 2, "iid", {}, stream()).save(tmp_path / "p.parquet")
    schema = pq.read_schema(tmp_path / "p.parquet")
    assert (schema.names, schema.field("client").type, schema.field("sample").type) == (
        ["client", "split", "sample"],
        pa.int32(),
        pa.int64(),
    )


def test_file_of_another_program_is_read(tmp_path):
    path = write(tmp_path / "p.parquet", [1, 0, 0], ["train", "test", "train"], [7, 9, 2])
    partition = Partition.load(path, 10)
    assert (lists(partition.train), lists(partition.test)) == ([[2], [7]], [[9], []])


def test_saved_partition_of_other_data_is_refused(tmp_path):
    make_partition(pool_of(50), 6, "iid", {}, stream()).save(tmp_path / "p.parquet")
    with pytest.raises(DataError, match="has samples 0 to 49, the data has 0 to 29"):
        Partition.load(tmp_path / "p.parquet", 30)
    with pytest.raises(DataError, match="was drawn over 50 samples, the data has 60"):
        Partition.load(tmp_path / "p.parquet", 60)


@pytest.mark.parametrize(
    ("client", "split", "sample", "meta", "message"),
    [
        ([0, 1], ["train"] * 2, [0, 0], None, "gives a sample to two clients or parts"),
        ([0, 2], ["train"] * 2, [0, 1], None, "has clients 0 to 2, but client 1 has no samples"),
        ([0, -1], ["train"] * 2, [0, 1], None, "has clients -1 to 0, expected 0 to 0"),
        ([0, 5], ["train"] * 2, [0, 1], {"clients": 2}, "has clients 0 to 5, expected 0 to 1"),
        ([0], ["train"], [0], {"clients": 10**9}, "names 1000000000 clients, expected 1 to 10"),
        ([0, 1], ["train", "public"], [0, 1], None, "gives public samples to clients, expected -1"),
        ([-1], ["public"], [0], {"clients": 1}, "has public samples alone"),
        ([0], ["tset"], [0], None, "has split 'tset', expected 'train', 'test' or 'public'"),
        ([0], ["train"], [-1], None, "has samples -1 to -1, the data has 0 to 9"),
        ([0], ["train"], [10], None, "has samples 10 to 10, the data has 0 to 9"),
        ([0], ["train"], [0.5], None, "is no saved partition"),
        ([0, 0], ["train"] * 2, [0, None], None, "1 rows are empty"),
        ([0], ["train"], [0], {"clients": 1, "digest": "other"}, "is damaged: it is not what was saved"),
        ([0], ["train"], [0], [1], "its metadata is no mapping"),
        (NONE, pa.array([], pa.string()), NONE, None, "has no samples"),
    ],
)
def test_wrong_file_is_told_with_its_fault(tmp_path, client, split, sample, meta, message):
    path = write(tmp_path / "p.parquet", client, split, sample, meta)
    with pytest.raises(DataError) as told:
        Partition.load(path, 10)
    assert str(told.value).startswith(f"partition.file: {path} ")
    assert message in str(told.value)


def test_missing_column_and_missing_file_are_told(tmp_path):
    pq.write_table(pa.table({"client": [0], "sample": [0]}), tmp_path / "p.parquet")
    with pytest.raises(DataError, match="expected Parquet with columns client, split, sample"):
        Partition.load(tmp_path / "p.parquet", 10)
    with pytest.raises(DataError, match=r"none.parquet does not exist"):
        Partition.load(tmp_path / "none.parquet", 10)


def test_no_damaged_byte_changes_a_partition(tmp_path):
    """Each seventh byte flipped: the file is refused, or the byte held nothing of the partition."""
    path = tmp_path / "p.parquet"
    partition = make_partition(pool_of(20), 3, "iid", {}, stream())
    partition.save(path)
    saved, refused = path.read_bytes(), 0
    for place in range(0, len(saved), 7):
        path.write_bytes(saved[:place] + bytes([saved[place] ^ 0x55]) + saved[place + 1 :])
        try:
            again = Partition.load(path, 20)
        except DataError:
            refused += 1
        else:
            assert [lists(again.train), lists(again.test)] == [lists(partition.train), lists(partition.test)]
    assert refused > len(saved) / 7 / 2
