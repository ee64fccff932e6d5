"""Means and covariances by class: of each client, of all together, and what is drawn from them."""

import pytest
import torch

from rayfed_kd.algorithms.ccvr import moments, pooled_moments, virtual_features


def column(*values):
    return torch.tensor(values, dtype=torch.float32)[:, None]


def labelled(rows, label=0):
    return moments(rows, torch.full((len(rows),), label))


def test_pooled_moments_by_hand():
    """Clients {0, 2} and {4, 6, 8}: means 1 and 6, variances 2 and 4; together mean 4, variance 10."""
    first, second = labelled(column(0, 2)), labelled(column(4, 6, 8))
    assert (first.means.item(), first.covariances.item(), first.counts.item()) == (1, 2, 2)
    assert (second.means.item(), second.covariances.item(), second.counts.item()) == (6, 4, 3)
    both = pooled_moments([first, second])
    assert (both.means.item(), both.covariances.item(), both.counts.item()) == (4, 10, 5)


def test_one_sample_has_covariance_zero_and_one_of_all_clients_too():
    alone = labelled(column(3))
    assert (alone.means.item(), alone.covariances.item()) == (3, 0)
    assert pooled_moments([alone]).covariances.item() == 0
    rows, labels = virtual_features(pooled_moments([alone]), 4, torch.Generator().manual_seed(1))
    assert rows.flatten().tolist() == [3, 3, 3, 3]
    assert labels.tolist() == [0, 0, 0, 0]


def test_pooled_moments_are_those_of_all_features_in_one_place():
    """Three clients of unequal classes; class 2 is at one client, class 3 at none."""
    stream = torch.Generator().manual_seed(3)
    rows = torch.randn(60, 5, generator=stream) @ torch.randn(5, 5, generator=stream) + 40
    labels = torch.arange(60) % 3
    owner = torch.arange(60) % 5 // 2
    owner[labels == 2] = 1
    told = [moments(rows[owner == k], labels[owner == k]) for k in range(3)]
    assert told[0].classes.tolist() == [0, 1]
    pooled, upper = pooled_moments(told), torch.triu_indices(5, 5)
    assert pooled.classes.tolist() == [0, 1, 2]
    for place in range(3):
        own = rows[labels == place].double()
        torch.testing.assert_close(pooled.means[place], own.mean(0), atol=1e-5, rtol=0)
        expected = torch.cov(own.T)[upper[0], upper[1]]
        torch.testing.assert_close(pooled.covariances[place], expected, atol=2e-4, rtol=1e-5)


def test_drawn_features_have_the_moments():
    stream = torch.Generator().manual_seed(5)
    rows = torch.randn(200, 3, generator=stream) @ torch.tensor([[2.0, 1, 0], [0, 1, 0.5], [0, 0, 0.1]])
    source = pooled_moments([labelled(rows, 4)])
    drawn, labels = virtual_features(source, 20_000, torch.Generator().manual_seed(6))
    assert set(labels.tolist()) == {4}
    torch.testing.assert_close(drawn.mean(0), rows.mean(0), atol=0.05, rtol=0)
    torch.testing.assert_close(torch.cov(drawn.T), torch.cov(rows.T), atol=0.12, rtol=0.03)


def test_covariance_of_fewer_samples_than_features_is_drawn_from_as_well():
    """Rank 1 in four dimensions: all that is drawn lies on the line of both samples."""
    ends = torch.tensor([[0.0, 0, 0, 0], [1, 2, 3, 4]])
    drawn, _ = virtual_features(pooled_moments([labelled(ends)]), 50, torch.Generator().manual_seed(7))
    assert drawn.isfinite().all()
    torch.testing.assert_close(drawn, drawn[:, :1] * ends[1], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("seed", [1, 2])
def test_draws_are_the_streams(seed):
    source = pooled_moments([labelled(column(0, 2))])
    draws = [virtual_features(source, 3, torch.Generator().manual_seed(s))[0] for s in (1, seed)]
    assert torch.equal(*draws) == (seed == 1)
