"""How much late replies weigh, and the rules of FedAsync and FedBuff worked by hand."""

import math

import pytest
import torch
from pydantic import ValidationError

from rayfed_kd.models.vectors import weighted_mean
from rayfed_kd.protocol import Lateness, Replies, Reply
from rayfed_kd.timing import UpdateRule
from rayfed_kd.timing.staleness import Constant, Exponential, Hinge, Polynomial, Threshold


def vec(*values):
    return torch.tensor(values, dtype=torch.float32)


def late(tau, *sent):
    return Lateness(tau, (lambda: vec(*sent)) if sent else None)


@pytest.mark.parametrize(
    ("staleness", "expected"),
    [
        (Constant(), [1, 1, 1, 1]),
        (Polynomial(), [1, 1 / math.sqrt(2), 1 / math.sqrt(3), 1 / math.sqrt(8)]),
        (Polynomial(a=2.0), [1, 1 / 4, 1 / 9, 1 / 64]),
        (Hinge(), [1, 1, 1, 1 / 31]),  # a 10, b 4: 1 / (10 (7 - 4) + 1)
        (Hinge(a=1.0, b=1.0), [1, 1, 1 / 2, 1 / 7]),
        (Threshold(b=1.0), [1, 1, 0, 0]),
        (Exponential(a=0.5), [1, math.exp(-0.5), math.exp(-1), math.exp(-3.5)]),
    ],
)
def test_weights_are_the_functions_of_staleness(staleness, expected):
    assert [staleness.weight(tau) for tau in (0, 1, 2, 7)] == pytest.approx(expected, rel=1e-12)


def test_parameter_that_a_function_does_not_take_is_refused():
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        Threshold(a=1.0)


def test_fedasync_mixes_the_models():
    """alpha 0.6, tau 3, a 0.5: weight 0.3; 0.7 * 1 + 0.3 * 5 = 2.2."""
    rule = UpdateRule(Polynomial(a=0.5), "none", difference=False, server_lr=0.6)
    new = rule.applied(vec(1.0, 0.0), [vec(5.0, 10.0)], [40.0], [late(3, 9.0, 9.0)])
    assert torch.allclose(new, vec(2.2, 3.0))


def test_fedbuff_adds_the_weighted_differences():
    """K 2, eta 0.5; fresh 4 from 2, and 7 from 3 with tau 3, weight 1/2: 2 + 0.5 (2 + 0.5 * 4) / 2 = 3."""
    rule = UpdateRule(Polynomial(a=0.5), "count", difference=True, server_lr=0.5)
    new = rule.applied(vec(2.0), [vec(4.0), vec(7.0)], [30.0, 10.0], [late(0, 2.0), late(3, 3.0)])
    assert torch.allclose(new, vec(3.0))


@pytest.mark.parametrize(
    ("normalisation", "expected"),
    [
        # w = 2; candidates 4 (fresh, n 30) and 2 + (7 - 3) = 6 (tau 1, weight 1/2, n 10)
        ("none", 2 + 1 * 2 + 0.5 * 4),
        ("count", 2 + (1 * 2 + 0.5 * 4) / 2),
        ("weight_sum", (1 * 4 + 0.5 * 6) / 1.5),
        ("samples", 2 + (30 * 2 + 0.5 * 10 * 4) / 40),
    ],
)
def test_normalisations(normalisation, expected):
    rule = UpdateRule(Polynomial(a=1.0), normalisation)
    new = rule.applied(vec(2.0), [vec(4.0), vec(7.0)], [30.0, 10.0], [late(0, 2.0), late(1, 3.0)])
    assert torch.allclose(new, vec(expected))


def test_replies_that_all_weigh_nothing_change_nothing():
    rule = UpdateRule(Threshold(b=0.0), "weight_sum")
    assert torch.equal(rule.applied(vec(2.0), [vec(4.0)], [30.0], [late(1, 3.0)]), vec(2.0))


def test_buffers_are_mixed_as_they_are():
    """A variance of 0.1, sent as 1.0 and come back as 0.2, must not become 0.1 + 0.2 - 1.0."""
    rule = UpdateRule(Constant(), "count", server_lr=0.5, borders={2: 1})
    new = rule.applied(vec(2.0, 0.1), [vec(7.0, 0.2)], [10.0], [late(1, 3.0, 1.0)])
    assert torch.allclose(new, vec(2 + 0.5 * 4, 0.5 * 0.1 + 0.5 * 0.2))


@pytest.mark.parametrize(("rate", "mixed"), [(0.5, 0.5 * 1.0 + 0.5 * 0.25), (1.5, 0.25), (3.0, 0.25)])
def test_steps_beyond_the_replies_leave_buffers_at_their_mean(rate, mixed):
    """A variance of 1.0 and replies of 0.2 and 0.3; 1.0 + 1.5 (0.25 - 1.0) would be negative."""
    rule = UpdateRule(Constant(), "count", server_lr=rate, borders={2: 1})
    new = rule.applied(vec(2.0, 1.0), [vec(3.0, 0.2), vec(5.0, 0.3)], [1.0, 1.0], [late(0), late(0)])
    assert new.tolist() == pytest.approx([2 + rate * 2, mixed])


def test_fresh_replies_give_the_weighted_mean_to_the_bit():
    torch.manual_seed(1)
    vectors, counts = [torch.randn(1000) for _ in range(7)], [13.0, 7.0, 101.0, 2.0, 55.0, 31.0, 29.0]
    expected = weighted_mean(vectors, counts)
    for rule in (UpdateRule(), UpdateRule(Polynomial(), "samples", difference=False)):
        assert torch.equal(rule.applied(torch.randn(1000), vectors, counts, [late(0)] * 7), expected)


def test_replies_bring_their_lateness_themselves():
    class Sent:
        def resolve(self):
            return {"student": vec(3.0).numpy()}

    fresh, old = Reply(student=vec(4.0)), Reply(student=vec(7.0))
    fresh.client, old.client, old.staleness, old.sent = 5, 2, 1, Sent()
    replies = Replies([fresh, old], UpdateRule(Polynomial(a=1.0), "count"))
    # Client 2 first: 2 + (0.5 * (7 - 3) + 1 * (4 - 2)) / 2
    assert torch.allclose(replies.aggregated("student", [10.0, 30.0], vec(2.0)), vec(4.0))
