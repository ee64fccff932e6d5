"""FedProx: worked steps, the identity with FedAvg, what the term reaches."""

import pytest
import torch

from rayfed_kd.toolbox.losses import squared_distance

QUADRATIC = """
import rayfed_kd
import torch
from torch import nn


class Point(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, images):
        return self.w.expand(len(images), 2)  # both logits are w


@rayfed_kd.model_builder
def point(shape, classes):
    return Point()
"""


@pytest.mark.parametrize(
    ("mu", "trained", "mean"),
    [
        (0.0, [0.19, -0.57], -0.114),
        (0.01, [0.1899, -0.5697], -0.11394),
        (0.5, [0.185, -0.555], -0.111),
        (1.0, [0.18, -0.54], -0.108),
    ],
)
def test_two_steps_on_quadratics_by_hand(mu, trained, mean, bench, monkeypatch, own_module):
    """F_k = (w - c_k)^2 / 2, c = (1, -3), n = (3, 2), w^t = 0, eta 0.1, two full-batch steps.

    The first step has no proximal gradient: w = 0.1 c; then w - 0.1 (w - c + mu w) = c (0.19 - 0.01 mu).
    """
    own_module("point_model", QUADRATIC)
    centres = {3: 1.0, 2: -3.0}

    def quadratic(logits, labels, given):
        return (logits[:, 0] - centres[len(labels)]).square().sum() / (2 * len(labels))

    monkeypatch.setattr("rayfed_kd.algorithms.fedprox.cross_entropy", quadratic)
    table = bench(
        {"name": "fedprox", "mu": mu},
        "model={name: 'point_model:point'}",
        "data={name: synthetic, samples: 7, classes: 2, shape: [2]}",
        "partition={name: iid, clients: 2}",
        "local={epochs: 2, batch_size: 8, optimizer: {lr: 0.1}}",
        "sampling={fraction: 1.0}",
    )
    assert table.setting.partition.sizes.tolist() == [3, 2]
    server, replies = table.first_exchange(0, 1)
    assert [reply["student"].item() for reply in replies] == pytest.approx(trained, abs=1e-7)
    after = table.method.absorb(server, replies, table.server())
    assert after.weights.item() == pytest.approx(mean, abs=1e-7)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_mu_zero_is_fedavg_bit_for_bit(weighting, train):
    method = {"name": "fedprox", "mu": 0.0, "weighting": weighting}
    prox, plain = train(method), train({"name": "fedavg", "weighting": weighting})
    assert torch.equal(prox["global"], plain["global"])


def test_larger_mu_leaves_clients_nearer_to_the_received_model(run_small, losses):
    """The mean over steps of ||w - w^t||^2, in the first round, where all start from one model."""
    near, far = (losses(run_small({"name": "fedprox", "mu": mu}, "rounds=1"))[0] for mu in (3.0, 0.001))
    assert 0 < near["squared_distance"] < far["squared_distance"]


def test_first_step_has_no_proximal_gradient_and_no_nan():
    """At w = w^t the square root of a norm would have gradient NaN; the sum of squares has 0."""
    here = torch.ones(3, requires_grad=True)
    distance = squared_distance([here], [torch.ones(3)])
    distance.backward()
    assert distance.item() == 0
    assert torch.equal(here.grad, torch.zeros(3))


def test_term_is_half_mu_times_the_squared_distance_over_parameters_alone(bench):
    """Buffers of a BatchNorm model move in training and must not be held back: they are no parameters."""
    ctx = bench({"name": "fedprox"}, "model={name: bottleneck_resnet, width: 2}").server()
    initial = ctx.initial_vector()
    flat = ctx.model(initial)
    assert flat.num_buffers > 0
    flat.load(initial + 1.0)
    distance = squared_distance(flat.parameters(), flat.parts(initial))
    assert distance.item() == pytest.approx(flat.num_parameters, rel=1e-5)
    distance.backward()
    torch.testing.assert_close(flat.gradients, torch.full_like(flat.gradients, 2.0))
