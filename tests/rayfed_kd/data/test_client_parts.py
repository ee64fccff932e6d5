"""Clients' samples in two arrays: by hand, and held against an array per client, drawn one after another."""

import pickle

import numpy as np
import pytest
from partitions import make_partition

from rayfed_kd.data.client_parts import ClientParts
from rayfed_kd.data.partition import SCHEMES
from rayfed_kd.data.schemes import Pool

CLIENTS, SAMPLES, CLASSES = 7, 200, 3
OPTIONS = {
    "iid": {},
    "dirichlet": {"alpha": 0.1},
    "dirichlet_client": {"alpha": 0.5},
    "dirichlet_fedkf": {"alpha": 0.1},
    "classes": {"classes_per_client": 2},
    "quantity": {"alpha": 0.3},
    "natural": {},
    "by_column": {"column": "site"},
}


def stream():
    return np.random.default_rng(3)


def pool():
    draws = np.random.default_rng(11)
    labels = draws.integers(0, CLASSES, SAMPLES)
    columns = {"site": draws.integers(0, 12, SAMPLES)}
    return Pool(labels, CLASSES, writers=draws.integers(0, 9, SAMPLES), columns=columns)


def one_after_another(drawn, fraction, draws):
    """Each client's samples are shuffled in turn; the first, rounded as Python rounds, are its test."""
    train, test = [], []
    for part in drawn:
        shuffled = draws.permutation(np.sort(part))
        held = min(round(fraction * len(part)), max(len(part) - 1, 0))
        train.append(sorted(shuffled[held:].tolist()))
        test.append(sorted(shuffled[:held].tolist()))
    return train, test


def lists(parts):
    return [part.tolist() for part in parts]


@pytest.mark.parametrize("scheme", OPTIONS)
@pytest.mark.parametrize("fraction", [0.2, 0.5])
def test_parts_are_those_of_clients_drawn_one_after_another(scheme, fraction):
    options, draws = OPTIONS[scheme], stream()
    drawn = SCHEMES.find(scheme, "partition.name")(pool(), CLIENTS, draws, **options)
    expected = one_after_another(drawn, fraction, draws)
    made = make_partition(pool(), CLIENTS, scheme, options, stream(), test_fraction=fraction)
    assert (lists(made.train), lists(made.test)) == expected


def test_iid_deals_as_array_split_does():
    """200 shuffled samples for 7 clients: four of 29, then three of 28."""
    made = make_partition(pool(), CLIENTS, "iid", {}, stream(), test="official")
    dealt = np.array_split(np.random.default_rng(3).permutation(SAMPLES), CLIENTS)
    assert lists(made.train) == [sorted(part.tolist()) for part in dealt]
    assert made.sizes.tolist() == [29, 29, 29, 29, 28, 28, 28]


def test_writers_keep_their_own_samples():
    whole = pool()
    made = make_partition(whole, CLIENTS, "natural", {}, stream(), test="official")
    chosen = np.sort(np.random.default_rng(3).choice(np.unique(whole.writers), CLIENTS, replace=False))
    assert lists(made.train) == [np.flatnonzero(whole.writers == writer).tolist() for writer in chosen]


def test_arrays_by_hand():
    parts = ClientParts.of([np.array([4, 1]), np.array([], dtype=np.int64), np.array([2])])
    assert (parts.indices.tolist(), parts.offsets.tolist()) == ([4, 1, 2], [0, 2, 2, 3])
    assert (parts.sizes.tolist(), parts.owners.tolist()) == ([2, 0, 1], [0, 0, 2])
    assert lists(parts.ascending()) == [[1, 4], [], [2]]
    assert (len(parts), lists(parts[1:]), parts[-1].tolist()) == (3, [[], [2]], [2])
    with pytest.raises(IndexError):
        parts[3]
    again = ClientParts.owned(np.array([2, 0, 0]), np.array([2, 4, 1]), 3)
    assert again == parts.ascending()
    assert again != parts


def test_clients_of_a_pickle_are_no_objects_of_their_own():
    """8 bytes a sample and 8 a client: what crosses to another process."""
    parts = ClientParts.sized(np.arange(3000), np.full(1000, 3))
    assert len(pickle.dumps(parts, protocol=5)) < 8 * (3000 + 1001) + 1000
