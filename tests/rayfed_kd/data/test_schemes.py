"""Partition schemes: disjoint, complete, finished for any input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitions import make_partition

from rayfed_kd.data.partition import SCHEMES
from rayfed_kd.data.schemes import Pool, apportioned, mended, proportions
from rayfed_kd.errors import RecipeError

ALPHAS = st.floats(1e-6, 1e6)
WITH_ALPHA = ["dirichlet", "dirichlet_client", "dirichlet_fedkf", "quantity"]


def stream(seed=1):
    return np.random.default_rng(seed)


def pool_of(samples, classes=5, seed=0):
    labels = np.random.default_rng(seed).integers(0, classes, samples)
    return Pool(labels, classes)


def drawn(name, pool, clients, seed=1, **options):
    return make_partition(pool, clients, name, options, stream(seed), test="official").train


def counts_of(name, classes, of_each, clients, seed=1, **options):
    """[clients, classes] samples that clients draw of so many of each class."""
    labels = np.repeat(np.arange(classes), of_each)
    parts = drawn(name, Pool(labels, classes), clients, seed, **options)
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(WITH_ALPHA),
    alpha=ALPHAS,
    samples=st.integers(1, 200),
    share=st.floats(0.001, 1),
    seed=st.integers(0, 99),
)
def test_any_alpha_and_any_number_of_clients_end_disjoint(name, alpha, samples, share, seed):
    clients = max(1, int(share * samples))
    parts = drawn(name, pool_of(samples, seed=seed), clients, seed, alpha=alpha)
    assert len(parts) == clients
    everything = np.concatenate(parts)
    assert len(np.unique(everything)) == len(everything)
    used = clients * (samples // clients) if name == "dirichlet_client" else samples
    assert len(everything) == used
    assert min(len(part) for part in parts) >= 1


@settings(max_examples=40, deadline=None)
@given(
    samples=st.integers(1, 120),
    share=st.floats(0.001, 1),
    per_client=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_pathological_is_complete_or_refused(samples, share, per_client, seed):
    clients, pool = max(1, int(share * samples)), pool_of(samples, seed=seed)
    try:
        parts = drawn("classes", pool, clients, seed, classes_per_client=per_client)
    except RecipeError:
        return
    assert sorted(np.concatenate(parts).tolist()) == list(range(samples))
    assert all(len(np.unique(pool.labels[part])) == per_client for part in parts)


@settings(max_examples=40, deadline=None)
@given(samples=st.integers(1, 100), share=st.floats(0.001, 1), seed=st.integers(0, 99))
def test_natural_clients_are_disjoint_and_pure(samples, share, seed):
    writers = np.random.default_rng(seed).integers(0, 20, samples)
    clients = max(1, int(share * len(np.unique(writers))))
    parts = drawn("natural", Pool(np.zeros(samples, dtype=np.int64), 1, writers), clients, seed)
    assert [len(np.unique(writers[part])) for part in parts] == [1] * clients
    assert sum(map(len, parts)) == np.isin(writers, [writers[part[0]] for part in parts]).sum()


@settings(max_examples=30, deadline=None)
@given(alpha=ALPHAS, samples=st.integers(10, 200), clients=st.integers(1, 10), seed=st.integers(0, 99))
def test_balanced_dirichlet_is_complete_too(alpha, samples, clients, seed):
    parts = drawn("dirichlet", pool_of(samples, seed=seed), clients, seed, alpha=alpha, balance=True)
    assert sorted(np.concatenate(parts).tolist()) == list(range(samples))


@settings(max_examples=30, deadline=None)
@given(samples=st.integers(1, 100), share=st.floats(0.001, 1))
def test_iid_shares_differ_by_one_at_most(samples, share):
    clients = max(1, int(share * samples))
    sizes = [len(part) for part in drawn("iid", pool_of(samples), clients)]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == samples


@settings(max_examples=100, deadline=None)
@given(alpha=ALPHAS, seed=st.integers(0, 999))
def test_proportions_are_finite_and_sum_to_one(alpha, seed):
    rows = proportions(alpha, (3, 10), stream(seed))
    assert np.isfinite(rows).all()
    assert np.allclose(rows.sum(axis=1), 1)


def test_proportions_have_the_variance_of_dirichlet():
    """Var = (1/K)(1 - 1/K) / (K a + 1); K = 4, a = 0.5: 0.1875 / 3 = 0.0625."""
    rows = proportions(0.5, (40_000, 4), stream())
    assert rows.var(axis=0) == pytest.approx([0.0625] * 4, rel=0.03)


@pytest.mark.parametrize("alpha", [5e-324, 1e-310, 1e-6, 1e6, 1e300])
def test_proportions_are_finite_at_the_ends_of_floats(alpha):
    with np.errstate(all="raise", under="ignore"):
        rows = proportions(alpha, (200, 10), stream())
    assert np.allclose(rows.sum(axis=1), 1)


@pytest.mark.parametrize("name", WITH_ALPHA)
def test_infinite_alpha_is_refused(name):
    with pytest.raises(RecipeError, match=r"partition.alpha = inf: expected a number below inf"):
        drawn(name, pool_of(20), 2, alpha=float("inf"))


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet_client", "dirichlet_fedkf"])
def test_very_large_alpha_gives_every_client_the_same_mix(name):
    """5 classes of 100 over 5 clients: 20 of each, at most one more or less in each of two roundings."""
    counts = counts_of(name, 5, 100, 5, alpha=1e6)
    assert np.abs(counts - 20).max() <= 2


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet_fedkf"])
def test_very_small_alpha_gives_each_class_to_one_client(name):
    counts = counts_of(name, 5, 100, 5, alpha=1e-6, min_size=0)
    assert counts.max(axis=0).tolist() == [100] * 5


def test_fedkf_groups_fill_up_before_the_next():
    """C = 3, K = 4: groups of 3 and 1, so one client alone gets a quarter of each class, any of the four."""
    alone = set()
    for seed in range(40):
        counts = counts_of("dirichlet_fedkf", 3, 40, 4, seed, alpha=0.01).tolist()
        assert counts.count([10, 10, 10]) == 1
        alone.add(counts.index([10, 10, 10]))
    assert alone == {0, 1, 2, 3}


def test_fedkf_leaders_start_anew_when_all_have_led():
    """K = 2, C = 4: one group of two, each of whom leads in two of the four classes."""
    counts = counts_of("dirichlet_fedkf", 4, 100, 2, alpha=0.01)
    assert sorted(counts.argmax(axis=0).tolist()) == [0, 0, 1, 1]


def test_minimum_size_is_met_by_moving_samples():
    sizes = [len(p) for p in drawn("dirichlet", pool_of(100), 10, alpha=1e-6, min_size=5)]
    assert min(sizes) >= 5
    assert sum(sizes) == 100


def test_the_largest_give_their_last_samples():
    """Sizes 6, 1, 0 to at least 2: 5 goes to client 1, then 4 and 3 to client 2."""
    parts = [np.arange(6), np.array([6]), np.zeros(0, dtype=np.int64)]
    assert [part.tolist() for part in mended(parts, 2)] == [[0, 1, 2], [5, 6], [3, 4]]


def test_minimum_that_cannot_be_met_is_told_with_both_numbers():
    with pytest.raises(RecipeError, match="10 clients would need 200 samples, there are 100"):
        drawn("dirichlet", pool_of(100), 10, alpha=1.0, min_size=20)


def test_more_clients_than_samples_are_told():
    with pytest.raises(RecipeError, match=r"partition.clients = 11: there are 10 training samples"):
        drawn("iid", pool_of(10), 11)


def test_balance_keeps_clients_near_their_share():
    """Without the cap alpha 0.05 leaves some clients far above n / K = 200."""
    plain = counts_of("dirichlet", 10, 200, 10, alpha=0.05).sum(axis=1)
    capped = counts_of("dirichlet", 10, 200, 10, alpha=0.05, balance=True).sum(axis=1)
    assert max(capped) <= 200 + 200  # a client under its share takes at most one class more
    assert max(plain) > max(capped)


def test_equal_clients_draw_their_own_label_mix():
    assert set(counts_of("dirichlet_client", 5, 100, 10, alpha=0.01).sum(axis=1)) == {50}


@pytest.fixture
def wished(monkeypatch):
    """All counts by client and class that clients of these wishes get of so many samples of each class.

    More than one, where it matters who takes samples first: of 30 seeds both orders of two clients come.
    """

    def all_counts(samples, wishes):
        monkeypatch.setattr("rayfed_kd.data.schemes.proportions", lambda *given: np.array(wishes))
        asked = "dirichlet_client", len(samples), samples, len(wishes)
        drawings = [counts_of(*asked, seed, alpha=1.0) for seed in range(30)]
        return {tuple(map(tuple, counts.tolist())) for counts in drawings}

    return all_counts


def test_clients_of_one_size_get_the_mix_that_they_wish(wished):
    assert wished([8, 8], [[0.75, 0.25], [0.25, 0.75]]) == {((6, 2), (2, 6))}


# Two clients of six; client 0 wants class 0 alone. If it comes first, it gets the class's four, then one each
# of the others, also of the one that has but one left. What client 1 wants is scaled up:
# - .5, .3, .2: class 0 is gone, .6 and .4 of six round to four and two, of which class 1 has three left;
# - .4, .1, .5: class 1 has nothing left either.
# If client 1 comes first, it gets three, two and one, or two, one and three (.4 of six rounds to two), and
# client 0 all that is left.
@pytest.mark.parametrize(
    ("samples", "other", "counts"),
    [
        ([4, 4, 4], [0.5, 0.3, 0.2], {((4, 1, 1), (0, 3, 3)), ((1, 2, 3), (3, 2, 1))}),
        ([4, 1, 7], [0.4, 0.1, 0.5], {((4, 1, 1), (0, 0, 6)), ((2, 0, 4), (2, 1, 3))}),
    ],
)
def test_classes_that_are_used_up_are_left_out_and_the_rest_scaled_up(samples, other, counts, wished):
    assert wished(samples, [[1.0, 0.0, 0.0], other]) == counts


UNEVEN = [  # scheme, clients, options: where the data do not divide, and somebody has the leftovers
    ("dirichlet", 7, {"alpha": 0.05, "min_size": 10}),
    ("dirichlet", 7, {"alpha": 0.1, "min_size": 5, "balance": True}),
    ("dirichlet_client", 7, {"alpha": 0.01}),
    ("dirichlet_client", 5, {"alpha": 1.0}),
    ("dirichlet_fedkf", 7, {"alpha": 0.1}),
    ("classes", 7, {"classes_per_client": 2}),
    ("classes", 3, {"classes_per_client": 3}),
    ("quantity", 7, {"alpha": 0.1, "min_size": 3}),
]


@pytest.mark.parametrize(("name", "clients", "options"), UNEVEN)
def test_no_client_is_special_in_the_long_run(name, clients, options):
    """Over many seeds sizes, numbers of classes and largest classes have the same mean for every client.

    Each of the at most 21 means lies within 4.5 standard errors of the mean of all clients, as it does for
    exchangeable clients but once in 7,000 tries; whoever always came last was off by 30 to 300.
    """
    labels, seeds = np.tile(np.arange(5), 40), 200
    facts = np.empty((seeds, clients, 3))
    for seed in range(seeds):
        parts = drawn(name, Pool(labels, 5), clients, seed, **options)
        counts = np.stack([np.bincount(labels[part], minlength=5) for part in parts])
        facts[seed] = np.stack([counts.sum(axis=1), (counts > 0).sum(axis=1), counts.max(axis=1)], axis=1)
    facts -= facts.mean(axis=1, keepdims=True)
    assert (np.abs(facts.mean(axis=0)) <= 4.5 * facts.std(axis=0) / np.sqrt(seeds)).all()


@pytest.mark.parametrize(
    ("clients", "per_client", "message"),
    [(3, 2, "see at most 6 of 10 classes"), (3, 11, "has 10 classes"), (600, 10, "samples for")],
)
def test_pathological_request_that_cannot_be_met_is_told(clients, per_client, message):
    with pytest.raises(RecipeError, match=message):
        drawn("classes", Pool(np.repeat(np.arange(10), 60), 10), clients, classes_per_client=per_client)


def test_pathological_classes_have_equal_numbers_of_clients():
    """20 clients of 3 classes over 10 classes: 60 / 10 = 6 clients a class."""
    counts = counts_of("classes", 10, 60, 20, classes_per_client=3)
    assert np.count_nonzero(counts, axis=0).tolist() == [6] * 10


def test_pathological_clients_do_not_form_closed_pairs():
    """Fixed pairs of classes would part 20 clients into 5 worlds that share no class."""
    counts = counts_of("classes", 10, 60, 20, classes_per_client=2)
    assert len({tuple(np.flatnonzero(row)) for row in counts}) > 5


def test_natural_needs_writers():
    with pytest.raises(RecipeError, match="names no writers"):
        drawn("natural", pool_of(10), 2)


def test_whole_numbers_by_share_lose_nothing():
    """0.5, 0.25, 0.25 of 10: cumulative 5, 7.5, 10 round to 5, 8, 10."""
    assert apportioned(np.array([0.5, 0.25, 0.25]), 10).tolist() == [5, 3, 2]


def test_every_scheme_is_listed():
    assert set(SCHEMES) == {*WITH_ALPHA, "iid", "classes", "natural", "by_column", "from_source"}
