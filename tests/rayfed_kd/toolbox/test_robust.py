"""Robust means against the numbers worked by hand, and their traps in code that others run."""

import math
from itertools import permutations

import pytest
import torch

from rayfed_kd.errors import RecipeError, RunError
from rayfed_kd.models.vectors import weighted_mean
from rayfed_kd.recipe.seeds import torch_stream
from rayfed_kd.toolbox.robust import (
    AggregationOptions,
    aggregate,
    coordinate_median,
    krum_scores,
    linear_density,
    multi_krum,
    spectral_filter,
    top_direction,
    trimmed_mean,
)

X = torch.tensor([[1.0, 2.0], [1.2, 1.8], [0.8, 2.1], [1.1, 2.3], [5.0, -4.0]], dtype=torch.float64)
P = torch.tensor(
    [[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.65, 0.2, 0.15], [0.8, 0.1, 0.1], [0.0, 0.0, 1.0]],
    dtype=torch.float64,
)
ROBUST = {
    "median": coordinate_median,
    "trimmed": lambda v: trimmed_mean(v, 0.2),
    "krum": lambda v: multi_krum(v, 1, 1),
    "multi-krum": lambda v: multi_krum(v, 1, 3),
}


def near(values):
    return pytest.approx(values, abs=1e-9)


def half(count):
    return torch.full((count,), 0.5, dtype=torch.float64)


def test_median_of_the_worked_points():
    assert coordinate_median(X).tolist() == near([1.1, 2.0])


def test_median_of_an_even_count_is_the_mean_of_the_two_in_the_middle():
    assert coordinate_median(torch.tensor([[1.0], [2.0], [3.0], [10.0]])).item() == 2.5


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, [1.82, 0.84]), (0.2, [1.1, 5.9 / 3]), (0.3, [1.1, 5.9 / 3]), (0.4, [1.1, 2.0])],
)
def test_trimmed_mean_drops_as_many_values_of_each_coordinate_on_either_side(share, expected):
    assert trimmed_mean(X, share).tolist() == near(expected)


def test_a_tenth_of_sixteen_is_one():
    values = torch.arange(16.0)[:, None]
    values[15] = 1000
    assert trimmed_mean(values, 0.1).item() == 7.5  # (1 + ... + 14) / 14


def test_trimmed_to_the_middle_is_the_median_bit_for_bit():
    values = torch.rand(5, 100, generator=torch.Generator().manual_seed(1))
    assert torch.equal(trimmed_mean(values, 0.4), coordinate_median(values))


def test_krum_scores_of_the_worked_points():
    assert krum_scores(X, 1).tolist() == near([0.13, 0.33, 0.18, 0.23, 100.08])


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [(1, [1, 2]), (2, [0.9, 2.05]), (3, [2.9 / 3, 6.4 / 3]), (4, [1.025, 2.05]), (5, [1.82, 0.84])],
)
def test_multi_krum_averages_those_with_the_lowest_scores(chosen, expected):
    assert multi_krum(X, 1, chosen).tolist() == near(expected)


def test_equal_vectors_are_each_others_neighbours_and_the_first_is_taken():
    vectors = torch.tensor([[3.0], [1.0], [1.0], [1.0], [9.0]])
    assert krum_scores(vectors, 1).tolist() == [8, 0, 0, 0, 100]
    assert multi_krum(vectors, 1, 1).item() == 1


def test_krum_refuses_fewer_than_two_f_and_three():
    with pytest.raises(RunError, match=r"krum with f = 2 needs 7 replies or more \(2 f \+ 3\), there are 6"):
        krum_scores(torch.zeros(6, 2), 2)


@pytest.mark.parametrize("name", ROBUST)
def test_order_of_clients_changes_nothing(name):
    expected = ROBUST[name](X)
    assert all(torch.allclose(ROBUST[name](X[list(o)]), expected, rtol=1e-14) for o in permutations(range(5)))


def test_variance_and_distances_along_its_direction_are_those_of_the_covariance():
    centred = X - X.mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred / 5)
    variance, distance = top_direction(X[None], torch.ones(1, 5, dtype=torch.bool))
    assert variance.item() == near(8.4143620796)
    assert variance.item() == near(values[-1].item())
    assert distance[0].tolist() == near((centred @ vectors[:, -1]).abs().tolist())
    assert 0.5 * distance.max().item() == near(2.8956000847)
    four, _ = top_direction(X[None], torch.tensor([[True, True, True, True, False]]))
    assert four.item() == near(0.0374239621)


@pytest.mark.parametrize(
    ("points", "bound", "expected"),
    [
        (X, 9.0, [1.82, 0.84]),
        (X, 1.0, [1.025, 2.05]),
        (P, math.inf, [0.55, 0.16, 0.29]),
        (P, 0.05, [0.6875, 0.2, 0.1125]),
    ],
)
def test_filter_cuts_where_the_variance_is_above_its_bound(points, bound, expected):
    found = spectral_filter(points[:, None], bound, half)
    assert found[0].tolist() == near(expected)


def test_filter_treats_every_sample_alone():
    both = torch.stack([X, X.flip(0) / 10], dim=1)
    found = spectral_filter(both, 1.0, half)
    assert found[0].tolist() == near([1.025, 2.05])
    assert found[1].tolist() == near([0.182, 0.084])  # its variance is a hundredth: nothing is cut


def test_filter_keeps_half_of_the_points_whatever_it_draws():
    """Z = 0 would cut all. Mean 4: 3, 2 and 1 are the three nearest; mean 1.5: 1 and 2 the two nearest."""
    line = torch.tensor([0.0, 1.0, 2.0, 3.0, 14.0], dtype=torch.float64).view(5, 1, 1)
    assert spectral_filter(line, 0.1, torch.zeros).item() == near(2.0)
    assert spectral_filter(line[:4], 0.1, torch.zeros).item() == near(1.5)


def test_filter_of_probabilities_is_a_probability_vector():
    drawn = torch.rand(7, 50, 4, generator=torch.Generator().manual_seed(2)).softmax(dim=2)
    found = spectral_filter(drawn, 1e-4, linear_density(torch_stream(1, "filter")))
    assert torch.allclose(found.sum(1), torch.ones(50))
    assert (found >= 0).all()
    assert not torch.allclose(found, drawn.mean(0))


def test_draws_have_the_density_two_z():
    drawn = linear_density(torch_stream(1, "filter"))(200_000)
    assert 0 <= drawn.min() <= drawn.max() <= 1
    assert drawn.mean().item() == pytest.approx(2 / 3, abs=0.003)  # integral of 2 z^2
    assert (drawn < 0.5).double().mean().item() == pytest.approx(0.25, abs=0.005)


def test_plain_aggregation_is_the_weighted_mean_bit_for_bit():
    rows = list(torch.rand(4, 9))
    assert torch.equal(aggregate(rows, [1, 2, 3, 4], AggregationOptions()), weighted_mean(rows, [1, 2, 3, 4]))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"aggregation": "median"}, [1.1, 2.0]),
        ({"aggregation": "trimmed_mean", "trim": 0.2}, [1.1, 5.9 / 3]),
        ({"aggregation": "krum"}, [1, 2]),
        ({"aggregation": "multi_krum"}, [1.025, 2.05]),  # n - f = 4
        ({"aggregation": "multi_krum", "chosen": 2}, [0.9, 2.05]),
    ],
)
def test_aggregation_by_name_ignores_sample_counts(options, expected):
    assert aggregate(list(X), [50, 10, 30, 20, 40], AggregationOptions(**options)).tolist() == near(expected)


def test_krum_with_too_few_clients_is_refused_before_the_first_round():
    with pytest.raises(RecipeError, match=r"'krum' with method\.corrupt = 2 needs 7 clients a round or more"):
        AggregationOptions(aggregation="krum", corrupt=2).check_clients(6)
    with pytest.raises(RecipeError, match=r"method\.chosen = 8: there are 6 clients"):
        AggregationOptions(aggregation="multi_krum", chosen=8).check_clients(6)
