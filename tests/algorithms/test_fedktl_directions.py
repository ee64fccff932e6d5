"""The directions of classes, ArcFace by hand, and a last layer turned to them."""

import math

import pytest
import torch
from torch.nn import functional as F

from rayfed_kd.algorithms.fedktl.fedktl import angular_logits, frame, simplex, turned

OUTPUT, LABELS = torch.tensor([[1.0, 1.0, 0.0]], dtype=torch.float64), torch.tensor([0])
FRAME = frame(torch.eye(3, dtype=torch.float64))


def test_frame_of_three_classes_by_hand():
    assert FRAME.diagonal().tolist() == pytest.approx([0.8164965809] * 3, abs=1e-9)
    assert FRAME[0, 1:].tolist() == pytest.approx([-0.4082482905] * 2, abs=1e-9)


@pytest.mark.parametrize("count", [2, 3, 10])
def test_directions_have_length_one_and_equal_cosines(count):
    etf = simplex(count, 4)
    expected = torch.full((count, count), -1 / (count - 1)).fill_diagonal_(1)
    torch.testing.assert_close(etf.T @ etf, expected, atol=1e-6, rtol=0)
    assert torch.equal(etf, simplex(count, 4))
    assert not torch.allclose(etf, simplex(count, 5))


def test_arcface_by_hand():
    """Output (1, 1, 0): cosines (.2886751346, .2886751346, -.5773502692); margin 0.5, scale 64, label 0."""
    plain = angular_logits(OUTPUT, LABELS, FRAME, 0.0, 1.0)
    assert plain[0].tolist() == pytest.approx([0.2886751346, 0.2886751346, -0.5773502692], abs=1e-9)
    logits = angular_logits(OUTPUT, LABELS, FRAME, 0.5, 64.0)
    assert logits[0].tolist() == pytest.approx([-13.1634395289, 18.4752086141, -36.9504172281], abs=1e-8)
    assert F.cross_entropy(logits, LABELS).item() == pytest.approx(31.6386481429, abs=1e-8)


def test_gradient_is_finite_where_an_output_lies_in_its_direction():
    for sign in (1.0, -1.0):
        output = (sign * FRAME[:, 0])[None].float().requires_grad_()
        angular_logits(output, LABELS, FRAME.float(), 0.5, 64.0).sum().backward()
        assert output.grad.isfinite().all()


def test_turned_layer_predicts_the_largest_cosine():
    stream = torch.Generator().manual_seed(3)
    head, features = torch.randn(5 * 4 + 5, generator=stream), torch.randn(30, 4, generator=stream)
    etf = simplex(5, 1)
    outputs = F.linear(features, head[:20].view(5, 4), head[20:])
    cosines = F.normalize(outputs, dim=1) @ etf
    after = turned(head, etf)
    logits = F.linear(features, after[:20].view(5, 4), after[20:])
    torch.testing.assert_close(F.normalize(logits, dim=1), F.normalize(cosines, dim=1))
    assert torch.equal(logits.argmax(1), cosines.argmax(1))


def test_two_classes_lie_opposite_one_another():
    etf = simplex(2, 0)
    assert math.isclose(float(etf[:, 0] @ etf[:, 1]), -1, abs_tol=1e-6)
