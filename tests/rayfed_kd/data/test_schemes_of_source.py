"""Schemes that follow what the data say: the data's own clients, their division, the values of a column."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitions import make_partition

from rayfed_kd.data.partition import SCHEMES, Division, Pool
from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.seeds import numpy_stream


def pool_of(values):
    values = np.asarray(values, dtype=np.int64)
    return Pool(np.zeros(len(values), dtype=np.int64), 1, columns={"site": values})


def train_parts(pool, clients, column="site", seed=0):
    drawn = make_partition(
        pool, clients, "by_column", {"column": column}, numpy_stream(seed, "t"), test_fraction=1e-9
    )
    return drawn.train


@settings(max_examples=40, deadline=None)
@given(
    samples=st.integers(20, 120), values=st.integers(1, 8), clients=st.integers(1, 8), seed=st.integers(0, 9)
)
def test_values_stay_together_and_no_sample_is_lost(samples, values, clients, seed):
    """Whole values where there are enough of them; else a client has samples of a single value."""
    codes = np.concatenate([np.repeat(np.arange(values), 8), np.arange(samples) % values])
    parts = train_parts(pool_of(codes), clients, seed=seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(codes)))
    assert all(len(part) for part in parts)
    seen = [set(codes[part].tolist()) for part in parts]
    if values >= clients:
        assert sum(map(len, seen)) == values
    else:
        assert [len(one) for one in seen] == [1] * clients


def test_the_largest_values_go_to_clients_of_their_own():
    codes = np.repeat([0, 1, 2, 3], [50, 30, 10, 5])
    sizes = sorted(len(part) for part in train_parts(pool_of(codes), 3))
    assert sizes == [15, 30, 50]


def test_clients_beyond_the_values_go_where_the_samples_are():
    def sizes(*counts, clients):
        return [len(part) for part in train_parts(pool_of(np.repeat(range(len(counts)), counts)), clients)]

    assert sizes(90, 10, clients=5) == [23, 23, 22, 22, 10]
    assert sizes(67, 69, 53, 58, 53, clients=8) == [34, 33, 35, 34, 53, 29, 29, 53]
    assert sizes(1, 9, clients=10) == [1] * 10


def test_writer_is_a_column_where_the_data_have_writers():
    pool = Pool(np.zeros(6, dtype=np.int64), 1, writers=np.array([0, 1, 0, 1, 2, 2]))
    parts = train_parts(pool, 3, "writer")
    assert sorted(map(tuple, map(np.ndarray.tolist, parts))) == [(0, 2), (1, 3), (4, 5)]


def test_a_column_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(
        RecipeError, match=r"partition.column: .*no column 'sit'.*there are: site.*Did you mean site"
    ):
        train_parts(pool_of([0, 1]), 2, "sit")


def own(monkeypatch, scheme):
    monkeypatch.setattr(SCHEMES, "find", lambda *_: scheme)
    return make_partition(Pool(np.zeros(12, dtype=np.int64), 1), 3, "mine:scheme", {}, numpy_stream(0, "t"))


def division(tested):
    def scheme(pool, clients, stream):
        rows = np.arange(len(pool.labels)).reshape(clients, -1)
        return Division([row[1:] for row in rows], [row[:tested] for row in rows])

    return scheme


def test_a_scheme_of_ones_own_may_say_what_clients_test_on(monkeypatch):
    drawn = own(monkeypatch, division(1))
    assert [part.tolist() for part in drawn.test] == [[0], [4], [8]]
    assert [part.tolist() for part in drawn.train] == [[1, 2, 3], [5, 6, 7], [9, 10, 11]]


def test_a_division_of_ones_own_that_is_wrong_is_told(monkeypatch):
    with pytest.raises(RecipeError, match="sample 1 is given 2 times"):
        own(monkeypatch, division(2))
    with pytest.raises(RecipeError, match="it gave 1 training and 0 test parts, expected 3 of each"):
        own(monkeypatch, lambda pool, clients, stream: Division([np.arange(2)], []))
