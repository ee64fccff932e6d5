"""Epsilon against published and hand-computed values.

The rows with q < 1 are Renyi bounds at orders 2 to 64, which Opacus' and Google's accountants share.
"""

import builtins
import math

import pytest

from rayfed_kd.errors import RecipeError
from rayfed_kd.features.privacy.accountant import ORDERS, Mechanism, accountant_name, require_accountant


def mechanism(multiplier, rate=1.0, cohort="all", clients=100):
    return Mechanism(multiplier, cohort, clients, round(rate * clients), rate)


@pytest.mark.parametrize(
    ("rate", "multiplier", "rounds", "delta", "epsilon"),
    [
        (0.04, 1.5, 2250, 1e-5, 7.3298767738),
        (0.1, 1.0, 100, 1e-5, 7.9729215104),
        (0.01, 1.0, 1000, 1e-5, 2.1077530755),
    ],
)
def test_poisson_sampling_gives_the_known_epsilon(rate, multiplier, rounds, delta, epsilon):
    poisson = mechanism(multiplier, rate, "poisson")
    assert poisson.epsilon({1: rounds}, delta) == pytest.approx(epsilon, abs=1e-9)


def test_a_single_release_of_all_clients_gives_googles_own_test_value():
    assert mechanism(4.530877117).epsilon({1: 1}, 1e-6) == pytest.approx(1.0, abs=1e-5)


def by_hand(rate, multiplier, rounds, delta):
    """Poisson's epsilon from the binomial sum of Mironov, Talwar, Zhang 2019, section 3.3."""
    values = []
    for order in ORDERS:
        terms = [
            math.lgamma(order + 1)
            - math.lgamma(j + 1)
            - math.lgamma(order - j + 1)
            + (order - j) * math.log(1 - rate)
            + j * math.log(rate)
            + (j * j - j) / (2 * multiplier**2)
            for j in range(order + 1)
        ]
        most = max(terms)
        log_moment = most + math.log(sum(math.exp(term - most) for term in terms))
        values.append(
            rounds * log_moment / (order - 1)
            + math.log(1 - 1 / order)
            - math.log(delta * order) / (order - 1)
        )
    return min(values)


@pytest.mark.parametrize("multiplier", [0.7, 2.0])
def test_poisson_sampling_gives_the_binomial_sum(multiplier):
    expected = by_hand(0.2, multiplier, 30, 1e-5)
    assert mechanism(multiplier, 0.2, "poisson").epsilon({1: 30}, 1e-5) == pytest.approx(expected)


def test_a_fixed_cohort_has_twice_the_sensitivity_because_one_client_replaces_another():
    # 14.0537502: m 10 of n 100, T 100, for a multiplier of 1 of the sensitivity 2 S, a noise of 2 S.
    fixed = mechanism(2.0, 0.1, "fixed")
    assert fixed.epsilon({1: 100}, 1e-5) == pytest.approx(14.0537502, abs=1e-6)


def test_sampling_adds_nothing_where_most_clients_are_drawn():
    # As of all 20: 30 rounds at order 2 of a multiplier of 1, 30 + ln(1/2) - ln(2e-5).
    assert mechanism(2.0, 0.9, "fixed", 20).epsilon({1: 30}, 1e-5) == pytest.approx(40.1266311039)


def test_all_clients_are_not_amplified():
    # Order by order T alpha / (2 z^2), converted as in Canonne, Kamath, Steinke 2020, Proposition 12.
    expected = min(
        10 * order / (2 * 3.0**2) + math.log(1 - 1 / order) - math.log(1e-5 * order) / (order - 1)
        for order in ORDERS
    )
    assert mechanism(3.0).epsilon({1: 10}, 1e-5) == pytest.approx(expected)


def test_epsilon_falls_with_noise_and_rises_with_rounds_and_with_the_share_of_clients():
    epsilons = [mechanism(z, 0.1, "poisson").epsilon({1: 20}, 1e-5) for z in (0.5, 1.0, 2.0)]
    assert epsilons == sorted(epsilons, reverse=True)
    epsilons = [mechanism(1.0, 0.1, "poisson").epsilon({1: rounds}, 1e-5) for rounds in (1, 10, 100)]
    assert epsilons == sorted(epsilons)
    epsilons = [mechanism(1.0, rate, "poisson").epsilon({1: 10}, 1e-5) for rate in (0.01, 0.1, 0.5)]
    assert epsilons == sorted(epsilons)


def test_four_releases_a_round_are_one_with_half_the_multiplier():
    four, half = mechanism(2.0, 0.1, "poisson"), mechanism(1.0, 0.1, "poisson")
    assert four.epsilon({4: 10}, 1e-5) == half.epsilon({1: 10}, 1e-5)
    assert four.epsilon({1: 5, 4: 10}, 1e-5) > four.epsilon({4: 10}, 1e-5)


def test_the_local_epsilon_counts_a_share_of_the_noise_against_two_clips():
    # 16 clients share the noise: z / 4 each; a client's data are replaced: 2 S. So z / 8, of all clients.
    local = mechanism(8.0, 0.16, "fixed").local_epsilon(5, 16.0, 1e-5)
    assert local == mechanism(1.0).epsilon({1: 5}, 1e-5)


def test_without_noise_epsilon_is_infinite_and_without_a_release_nothing():
    assert mechanism(0.0).epsilon({1: 1}, 1e-5) == math.inf
    assert mechanism(0.0).local_epsilon(1, 4.0, 1e-5) == math.inf
    assert mechanism(1.0).epsilon({}, 1e-5) == 0.0
    assert mechanism(0.0).epsilon({}, 1e-5) == 0.0


def test_the_accountant_says_its_version():
    assert accountant_name().startswith("dp-accounting 0.")


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    imported = builtins.__import__

    def without(name, *rest):
        if name == "dp_accounting":
            raise ImportError("No module named 'dp_accounting'")
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(RecipeError, match=r"pip install -e '\.\[privacy\]'"):
        require_accountant()
