"""FedAvgM: three forms by hand, their identities, where momentum acts."""

import pytest
import torch

from rayfed_kd.algorithms.fedavgm import FedAvgM, Options, ServerState
from rayfed_kd.models.vectors import weighted_mean


def path(made_replies, changes, **options):
    """The global model, one parameter that starts at 1, after each of these D = w^t - mean."""
    method, server, found = FedAvgM(Options(**options)), ServerState(torch.ones(1), torch.zeros(1)), []
    for change in changes:
        replies = made_replies(({"student": [server.weights.item() - change]}, 7))
        server = method.absorb(server, replies, None)
        found.append(server.weights.item())
    return found


@pytest.mark.parametrize(
    ("form", "expected"),
    [("plain", [0.9, 0.61, 0.049]), ("nesterov", [0.81, 0.349, -0.4559]), ("damped", [0.99, 0.961, 0.9049])],
)
def test_three_updates_by_hand(form, expected, made_replies):
    """Start 1, D = 0.1, 0.2, 0.3, beta 0.9, eta_s 1. Plain: v = 0.1, 0.29, 0.561."""
    found = path(made_replies, (0.1, 0.2, 0.3), form=form, beta=0.9)
    assert found == pytest.approx(expected, abs=1e-6)


def test_damped_is_plain_with_a_smaller_server_rate(made_replies):
    """damped(beta, eta_s) = plain(beta, (1 - beta) eta_s)."""
    changes = (0.3, -0.2, 0.5, 0.1)
    damped = path(made_replies, changes, form="damped", beta=0.7, server_lr=0.8)
    plain = path(made_replies, changes, form="plain", beta=0.7, server_lr=0.3 * 0.8)
    assert damped == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize("form", ["plain", "nesterov", "damped"])
def test_without_momentum_every_form_is_fedavg(form, train):
    """w - (w - mean): equal to rounding."""
    ours = train({"name": "fedavgm", "form": form, "beta": 0.0})["global"]
    plain = train({"name": "fedavg"})["global"]
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-6)


def test_momentum_changes_the_model_from_the_second_round_on(train):
    first, third = (
        [train({"name": "fedavgm", "beta": beta}, f"rounds={rounds}")["global"] for beta in (0, 0.9)]
        for rounds in (1, 3)
    )
    assert torch.equal(*first)
    assert not torch.allclose(*third, atol=1e-3)


def test_buffers_are_plainly_averaged(made_replies):
    """One parameter and one buffer: with v = 1 kept from before only the parameter goes further."""
    server = ServerState(torch.tensor([1.0, 10.0]), torch.tensor([1.0]))
    replies = made_replies(({"student": [0.5, 20.0]}, 1), ({"student": [0.5, 40.0]}, 3))
    after = FedAvgM(Options(beta=0.5)).absorb(server, replies, None)
    assert after.weights.tolist() == pytest.approx([1.0 - (0.5 * 1.0 + 0.5), 35.0])
    assert after.velocity.tolist() == pytest.approx([1.0])


def test_velocity_covers_the_parameters_of_a_model_with_buffers(bench):
    """BatchNorm's running statistics lie behind the parameters and have no velocity."""
    table = bench({"name": "fedavgm"}, "model={name: bottleneck_resnet, width: 2}")
    server, replies = table.first_exchange(0, 1, 2)
    flat = table.server().model(server.weights)
    assert 0 < flat.num_buffers == len(server.weights) - len(server.velocity)
    after = table.method.absorb(server, replies, table.server())
    mean = weighted_mean(replies.vectors("student"), replies.numbers("samples"))
    assert torch.equal(after.weights[flat.num_parameters :], mean[flat.num_parameters :])
