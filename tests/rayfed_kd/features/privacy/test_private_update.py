"""The private update: by hand, against the plain mean, and its noise against its deviation."""

import pytest
import torch

from rayfed_kd.features.privacy.private_update import PrivateUpdate
from rayfed_kd.protocol import Lateness, Replies, Reply, RunError
from rayfed_kd.recipe.seeds import torch_stream
from rayfed_kd.timing import UpdateRule


def stream(part):
    return torch_stream(1, "noise", part)


def applied(rule, into, vectors, counts=None):
    return rule.applied(into, vectors, counts or [1.0] * len(vectors), [], part="student")


def test_the_denominator_is_the_expected_number_of_clients():
    # w = (1, 1), changes (3, 4) and (1, 0); q K = 4: w + (4, 4) / 4.
    vectors = [torch.tensor([4.0, 5.0]), torch.tensor([2.0, 1.0])]
    new = applied(PrivateUpdate(expected=4.0, stream=stream), torch.ones(2), vectors, [1.0, 1000.0])
    assert new.tolist() == [2.0, 2.0]


def test_more_clients_than_expected_weigh_as_much_each():
    # Poisson drew 3 where 2 were expected: w + (1 + 2 + 3) / 2.
    vectors = [torch.tensor([1.0 + k]) for k in (1, 2, 3)]
    assert applied(PrivateUpdate(expected=2.0, stream=stream), torch.ones(1), vectors).tolist() == [4.0]


def test_without_replies_the_vector_stays_and_has_the_noise():
    into = torch.arange(3.0)
    assert torch.equal(applied(PrivateUpdate(expected=2.0, stream=stream), into, []), into)
    noisy = applied(PrivateUpdate(expected=2.0, deviation=3.0, stream=stream), into, [])
    noise = 3.0 * torch.randn(3, generator=stream("student"), dtype=torch.float64)
    assert torch.equal(noisy, (into.double() * 2 + noise).div(2).float())


def test_without_noise_the_whole_cohorts_mean_is_the_plain_one_to_the_bit():
    vectors = [torch.randn(50, generator=torch_stream(2, "vector", k)) for k in range(7)]
    plain = Replies([Reply(v=vector) for vector in vectors]).aggregated("v", [1.0] * 7, torch.zeros(50))
    assert torch.equal(applied(PrivateUpdate(expected=7.0, stream=stream), torch.zeros(50), vectors), plain)


def test_the_means_noise_has_the_deviation_of_the_sum_over_the_denominator():
    new = applied(PrivateUpdate(expected=5.0, deviation=2.0, stream=stream), torch.zeros(10_000), [])
    # 10,000 draws: a standard deviation's error is 1 / sqrt(20,000) of itself; five of these.
    assert float(new.std()) == pytest.approx(2.0 / 5.0, rel=5 / 20_000**0.5)
    assert abs(float(new.mean())) < 5 * 0.4 / 100


def test_a_mean_of_rows_has_noise_by_the_root_of_their_number():
    rows = [torch.zeros(400, 25)]
    mean = PrivateUpdate(expected=5.0, row_deviation=0.1, stream=stream).mean(rows, "logits")
    assert float(mean.std()) == pytest.approx(0.1 * 20 / 5, rel=5 / 20_000**0.5)
    exact = [torch.full((2, 3), 1.0), torch.full((2, 3), 3.0)]
    assert torch.equal(PrivateUpdate(expected=4.0, stream=stream).mean(exact), torch.ones(2, 3))
    assert torch.equal(UpdateRule().mean(exact), torch.full((2, 3), 2.0))


def test_running_variances_stay_at_least_zero():
    rule = PrivateUpdate(expected=1.0, variances={3: torch.tensor([2])}, stream=stream)
    into = torch.tensor([0.0, 0.0, 1.0])
    # Three replies where one was expected take three times the change: the variance would be -2.
    new = applied(rule, into, [torch.tensor([0.0, -1.0, 0.0])] * 3)
    assert new.tolist() == [0.0, -3.0, 0.0]


@pytest.mark.parametrize(("deviation", "into", "second"), [(1.0, 1.0, 0.0), (1.0, 0.0, 1.0), (0.0, 0.0, 1.0)])
def test_a_mean_around_another_vector_than_went_down_is_refused(deviation, into, second):
    """A second client's own vector would move the mean by 1/2 without a change, whatever the clip."""
    rule = PrivateUpdate(expected=2.0, deviation=deviation, stream=stream, sealed=True)
    late = [Lateness(sent=lambda: torch.zeros(2)), Lateness(sent=lambda: torch.full((2,), second))]
    rule.applied(torch.zeros(2), [torch.ones(2)], [1.0], late[:1], part="a")
    with pytest.raises(RunError, match="averages 'a' around another vector"):
        rule.applied(torch.full((2,), into), [torch.ones(2)] * 2, [1.0] * 2, late, part="a")


def test_each_part_has_noise_of_its_own():
    rule = PrivateUpdate(expected=1.0, deviation=1.0, stream=stream)
    parts = [rule.applied(torch.zeros(4), [], [], [], part=part) for part in ("a", "b", "a")]
    assert torch.equal(parts[0], parts[2])
    assert not torch.equal(parts[0], parts[1])


def test_a_sealed_replys_parts_are_seen_through_means_only():
    rule = PrivateUpdate(expected=1.0, stream=stream, sealed=True)
    replies = Replies([Reply(v=torch.ones(2), samples=1)], rule)
    assert replies.numbers("samples") == [1.0]
    assert "v" in replies[0]
    assert list(replies[0].parts) == ["v"]
    assert torch.equal(replies.aggregated("v", [1.0], torch.zeros(2)), torch.ones(2))
    for reading in (
        lambda: replies[0]["v"],
        lambda: list(replies.vectors("v")),
        lambda: [reply["v"] for reply in replies],
    ):
        with pytest.raises(RunError, match=r"Replies\.aggregated and Replies.mean"):
            reading()
    with pytest.raises(ValueError, match="references"):
        replies[0].ref("v")
