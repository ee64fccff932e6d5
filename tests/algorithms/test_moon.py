"""MOON: the contrastive loss by hand, the identity with FedAvg, who gets gradient, what a client keeps."""

import pytest
import torch

from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.toolbox.losses import contrastive_loss

Z = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
POSITIVE = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
NEGATIVE = torch.tensor([[[0.0, 1.0]]], dtype=torch.float64)
SIMPLE = (
    "model={name: simple_cnn}",
    "data={name: synthetic, samples: 100, classes: 4, shape: [1, 32, 32]}",
    "local.epochs=1",
)


def test_contrastive_loss_and_gradient_by_hand():
    """z = (1, 0), z_g = (.6, .8), z_p = (0, 1), tau .5: cosines .6 and 0, so log(1 + e^-1.2)."""
    z = Z.clone().requires_grad_()
    loss = contrastive_loss(z, POSITIVE, NEGATIVE, 0.5)
    assert loss.item() == pytest.approx(0.2632824673, abs=1e-9)
    (5 * loss).backward()
    assert 5 * loss.item() == pytest.approx(1.3164123367, abs=1e-9)
    expected = 5 * torch.tensor([[0.0, 0.0925900866]], dtype=torch.float64)
    assert torch.allclose(z.grad, expected, atol=1e-9)


def test_second_negative_by_hand():
    """Cosines .6 against 0 and -.5: log(1 + e^-1.2 + e^-2.2)."""
    away = torch.tensor([[[-0.5, 0.75**0.5]]], dtype=torch.float64)
    loss = contrastive_loss(Z, POSITIVE, torch.cat([NEGATIVE, away]), 0.5)
    assert loss.item() == pytest.approx(0.3450052766, abs=1e-9)


def test_equal_positive_and_negative_give_log_two_and_no_gradient():
    z = torch.randn(7, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
    other = torch.randn(7, 5, generator=torch.Generator().manual_seed(2))
    loss = contrastive_loss(z, other, other[None], 0.5)
    loss.backward()
    assert loss.item() == pytest.approx(0.6931471806, abs=1e-6)
    assert torch.equal(z.grad, torch.zeros_like(z))


def test_gradient_reaches_the_clients_features_only():
    given = [tensor.clone().requires_grad_() for tensor in (Z, POSITIVE, NEGATIVE)]
    contrastive_loss(*given, 0.5).backward()
    assert [tensor.grad is None for tensor in given] == [False, True, True]


def test_mu_zero_is_fedavg_of_the_model_with_its_projection_head_bit_for_bit(train):
    moon, plain = train({"name": "moon", "mu": 0.0}, *SIMPLE), train({"name": "fedavg"}, *SIMPLE)
    assert torch.equal(moon["global"], plain["global"])


def test_clients_without_a_past_train_as_in_fedavg_and_those_with_one_do_not(train):
    """All take part in every round: the first is FedAvg's, the second is not."""
    changes = (*SIMPLE, "sampling.fraction=1.0", "evaluation.every=1")
    for rounds, same in ((1, True), (2, False)):
        moon = train({"name": "moon"}, *changes, f"rounds={rounds}")["global"]
        plain = train({"name": "fedavg"}, *changes, f"rounds={rounds}")["global"]
        assert torch.equal(moon, plain) == same


def test_client_that_comes_late_has_no_contrastive_term_whatever_the_round(bench):
    """What counts is the client's own past: first dispatch in round 9, second in round 10."""
    table = bench({"name": "moon"}, *SIMPLE)
    server = table.method.init_server(table.server(9))
    table.exchange(server, [2], 9)
    assert "contrast" not in table.logs[2]
    table.exchange(server, [2, 3], 10)
    assert ["contrast" in table.logs[client] for client in (2, 3)] == [True, False]


def test_client_keeps_as_many_of_its_last_models_as_the_buffer_holds(bench):
    table = bench({"name": "moon", "buffer": 2}, *SIMPLE)
    server = table.method.init_server(table.server())
    sent = [table.exchange(server, [1], index)[0]["student"] for index in (1, 2, 3)]
    kept = table.states[1]
    assert len(kept) == 2
    assert torch.equal(kept[0], sent[2])
    assert torch.equal(kept[1], sent[1])


def test_received_and_last_models_are_frozen_and_in_eval_mode(bench, monkeypatch):
    """Batch statistics would make a frozen model's features depend on the batch."""
    table = bench({"name": "moon"}, "model={name: bottleneck_resnet, width: 2}")
    seen = []
    original = FlatModule.features

    def features(self, images):
        seen.append((self.module.training, self.parameters()[0].requires_grad))
        return original(self, images)

    monkeypatch.setattr(FlatModule, "features", features)
    server, _ = table.first_exchange(0)
    assert set(seen) == {(True, True)}
    seen.clear()
    table.exchange(server, [0])
    assert seen[:3] == [(True, True), (False, False), (False, False)]


def test_model_without_features_is_refused_before_the_first_round(small, own_module):
    own_module(
        "plain_model",
        "from torch import nn\nimport rayfed_kd\n\n\n@rayfed_kd.model_builder\ndef plain(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes), nn.Tanh())\n",
    )
    with pytest.raises(RecipeError, match=r"model.name: a Sequential has no features: its output"):
        prepare({**small, "method": {"name": "moon"}}, ["model={name: 'plain_model:plain'}"])
