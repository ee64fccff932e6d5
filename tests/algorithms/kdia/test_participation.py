"""triFreqs: worked numbers, every mean, and the running form against the direct one."""

import math

import numpy as np
import pytest

from rayfed_kd.algorithms.kdia.participation import (
    DECAYS,
    combined,
    frequencies,
    running_weight,
    unseen_weight,
)

MEANS = ("geometric", "arithmetic", "harmonic", "interval", "participation", "samples")


def three(last, counts, sizes, now):
    return frequencies(*(np.array(values, dtype=np.float64) for values in (last, counts, sizes)), now)


def worked():
    """N 4, K 2, sizes 10, 20, 30, 40; cohorts {0, 1}, then {1, 2}; t = 1."""
    return three([0, 1, 1, -1], [1, 2, 1, 0], [10, 20, 30, 40], 1)


def test_worked_frequencies():
    """exp(-1), 1, 1, exp(-2) over their sum 2.503215; 1, 2, 1, 0 over 4; 10, 20, 30, 40 over 100."""
    found = worked()
    assert found.interval == pytest.approx([0.146963, 0.399486, 0.399486, 0.054065], abs=5e-7)
    assert found.participation == pytest.approx([0.25, 0.5, 0.25, 0.0])
    assert found.samples == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert all(values.dtype == np.float64 for values in found)


def test_worked_geometric_mean():
    """Cube roots .154306, .341849, .310590, 0 of the products, over their sum."""
    assert combined(worked(), "geometric") == pytest.approx([0.191270, 0.423738, 0.384992, 0.0], abs=5e-7)


def test_worked_first_round():
    """N 5, sizes 10, 20, 30, 20, 20, cohort {0, 1}: F is in proportion to cbrt(10) and cbrt(20)."""
    found = combined(three([0, 0, -1, -1, -1], [1, 1, 0, 0, 0], [10, 20, 30, 20, 20], 0), "geometric")
    assert found == pytest.approx([0.442493, 0.557507, 0, 0, 0], abs=5e-7)


def test_arithmetic_and_harmonic_mean_and_single_frequencies():
    """Arithmetic: a third of the rows' sums. Harmonic: 3 / (1/a + 1/b + 1/c), 0 where one is 0."""
    rows = list(zip(*worked(), strict=True))
    assert combined(worked(), "arithmetic") == pytest.approx([sum(row) / 3 for row in rows])
    raw = [3 / sum(1 / value for value in row) if all(row) else 0.0 for row in rows]
    assert combined(worked(), "harmonic") == pytest.approx([value / sum(raw) for value in raw])
    for mean in ("interval", "participation", "samples"):
        assert combined(worked(), mean) == pytest.approx(getattr(worked(), mean))


@pytest.mark.parametrize(("now", "expected"), [(0, 0.0231969), (1, 0.0450853), (50, 0.1)])
def test_interval_of_an_active_client_while_all_others_are_unseen(now, expected):
    """1 / (K + (N - K) exp(-t - 1)) with N 100, K 10."""
    last = np.full(100, -1.0)
    last[:10] = now
    assert frequencies(last, (last >= 0) * 1.0, np.ones(100), now).interval[0] == pytest.approx(
        expected, abs=5e-8
    )


def test_full_participation_weighs_by_the_cube_root_of_sizes():
    sizes = np.array([8.0, 27.0, 64.0])
    found = combined(frequencies(np.full(3, 6.0), np.full(3, 7.0), sizes, 6), "geometric")
    assert found == pytest.approx([2 / 9, 3 / 9, 4 / 9])


@pytest.mark.parametrize("mean", MEANS)
def test_weights_are_finite_and_sum_to_one_after_ten_thousand_rounds_of_absence(mean):
    found = combined(three([0, 10_000, 10_000], [1, 5000, 5000], [5, 5, 5], 10_000), mean)
    assert np.isfinite(found).all()
    assert found.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("mean", DECAYS)
def test_running_form_is_the_direct_form_over_ten_thousand_rounds(mean):
    """Running weights, scaled by the decay each round as `Slots.scaled` does, against F of all clients."""
    clients, stream = 40, np.random.default_rng(5)
    sizes = stream.integers(1, 500, clients).astype(np.float64)
    last, counts = np.full(clients, -1.0), np.zeros(clients)
    running: dict[int, float] = {}
    for now in range(10_000):
        cohort = stream.choice(clients, 4, replace=False)
        last[cohort], counts[cohort] = now, counts[cohort] + 1
        running = {client: weight * DECAYS[mean] for client, weight in running.items()}
        running |= {int(k): running_weight(mean, int(counts[k]), float(sizes[k])) for k in cohort}
        if now % 500 in (0, 1, 7, 499):
            unseen = counts == 0
            rest = unseen_weight(mean, int(unseen.sum()), float(sizes[unseen].sum()), now)
            total = math.fsum(running.values()) + rest
            direct = combined(frequencies(last, counts, sizes, now), mean)
            assert all(abs(running[k] / total - direct[k]) < 1e-12 for k in running)
            assert abs(rest / total - direct[unseen].sum()) < 1e-12
