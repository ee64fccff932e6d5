"""Distances from prototypes by hand, and the layer that predicts the nearest."""

import pytest
import torch

from rayfed_kd.toolbox.by_class.means import PerClass
from rayfed_kd.toolbox.by_class.prototypes import nearest_layer, prototype_distance

FEATURES, LABELS = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([0, 1])
ROWS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [9.0, 9.0]])
ALL = torch.ones(3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("distance", "expected", "gradient"),
    [
        ("mse", 2.25, [[0.5, 1.0], [1.0, 0.0]]),
        ("l2sq", 4.5, [[1.0, 2.0], [2.0, 0.0]]),
        ("l2", 5**0.5 + 2, [[5**-0.5, 2 * 5**-0.5], [1.0, 0.0]]),
    ],
)
def test_distance_and_gradient_by_hand(distance, expected, gradient):
    """h (1, 2) of class 0 and (3, 0) of class 1; prototypes (0, 0) and (1, 0)."""
    features = FEATURES.clone().requires_grad_()
    loss = prototype_distance(features, LABELS, ROWS, ALL, distance)
    loss.backward()
    assert loss.item() == pytest.approx(expected)
    torch.testing.assert_close(features.grad, torch.tensor(gradient))


@pytest.mark.parametrize(("distance", "expected"), [("mse", 1.25), ("l2sq", 2.5), ("l2", 5**0.5)])
def test_class_without_a_prototype_adds_nothing_and_gets_no_gradient(distance, expected):
    """Whatever its row holds: here what no arithmetic survives."""
    rows, present = ROWS.clone(), torch.tensor([True, False, True])
    rows[1] = 1e30
    features = FEATURES.clone().requires_grad_()
    loss = prototype_distance(features, LABELS, rows, present, distance)
    loss.backward()
    assert loss.item() == pytest.approx(expected)
    assert features.grad[1].tolist() == [0, 0]


def test_l2_is_of_the_batchs_mean_and_l2sq_of_each_sample():
    """mean ||h_i - P||^2 = ||mean h - P||^2 + mean ||h_i - mean h||^2."""
    features = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels, rows = torch.zeros(6, dtype=torch.int64), torch.ones(1, 3, dtype=torch.float64)
    present = torch.ones(1, dtype=torch.bool)
    scatter = (features - features.mean(0)).square().sum(1).mean()
    of_mean = prototype_distance(features, labels, rows, present, "l2")
    torch.testing.assert_close(
        prototype_distance(features, labels, rows, present, "l2sq"), of_mean.square() + scatter
    )


def test_features_at_their_prototype_give_a_gradient_of_zero_and_no_nan():
    features = torch.tensor([[1.0, 0.0]], requires_grad=True)
    prototype_distance(features, torch.tensor([1]), ROWS, ALL, "l2").backward()
    assert features.grad.tolist() == [[0, 0]]


def test_nearest_layer_says_the_class_of_the_nearest_prototype_of_those_that_there_are():
    stream = torch.Generator().manual_seed(2)
    classes = torch.tensor([0, 2, 3, 6], dtype=torch.int32)
    values, features = torch.randn(4, 5, generator=stream), torch.randn(200, 5, generator=stream)
    layer = nearest_layer(PerClass(classes, values, torch.ones(4)), 8)
    logits = features @ layer[:40].view(8, 5).T + layer[40:]
    expected = classes[torch.cdist(features, values).argmin(1)]
    assert torch.equal(logits.argmax(1), expected.long())
    assert len(expected.unique()) == 4
