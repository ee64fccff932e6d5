"""q-FFL: worked updates, the loss it weighs by, the identity with uniform FedAvg."""

import numpy as np
import pytest
import torch

from rayfed_kd.algorithms.qffl import QFFL, fair_update
from rayfed_kd.toolbox.averaging import GlobalModel

RECEIVED = torch.tensor([1.0, 2.0], dtype=torch.float64)
TRAINED = [torch.tensor([0.9, 1.8], dtype=torch.float64), torch.tensor([1.3, 1.9], dtype=torch.float64)]
LENET5 = 21_386  # parameters for 8x8 digits


@pytest.mark.parametrize(
    ("q", "expected", "curvatures"),
    [
        (0.0, [1.1, 1.85], [10, 10]),
        (0.0001, [1.1000063626, 1.8500147144], [10.0003068075, 10.0011932059]),
        (1.0, [1.1375, 1.925], [10, 30]),
        (2.0, [1.1342857143, 1.9485714286], [7.5, 80]),
    ],
)
def test_worked_updates(q, expected, curvatures, made_replies):
    """eta .1, w^t (1, 2), wbar (.9, 1.8) and (1.3, 1.9), F .5 and 2; ||dw||^2 = 5 and 10."""
    rows, found = [], []
    for trained, loss in zip(TRAINED, (0.5, 2.0), strict=True):
        delta, curvature = fair_update(10 * (RECEIVED - trained), 2, loss, 10.0, q)
        rows.append(({"delta": delta.tolist(), "curvature": curvature.item()}, 1))
        found.append(curvature.item())
    assert found == pytest.approx(curvatures, rel=1e-6)
    after = QFFL().absorb(GlobalModel(RECEIVED.float()), made_replies(*rows), None)
    assert after.weights.tolist() == pytest.approx(expected, rel=1e-6)


def test_q_zero_is_fedavg_with_uniform_weights(train):
    ours = train({"name": "qffl", "q": 0.0})["global"]
    plain = train({"name": "fedavg", "weighting": "uniform"})["global"]
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


def test_loss_is_that_of_the_received_model_on_all_samples_before_training(bench):
    """Against numpy's own cross entropy over the client's samples at once; q = 1 makes Delta F dw."""
    table = bench({"name": "qffl", "q": 1.0}, "local.batch_size=7")
    ctx = table.server()
    server, (reply,) = table.first_exchange(3)
    chosen = table.setting.partition.train[3]
    train, dataset = table.setting.dataset.train, table.setting.dataset
    images = (torch.tensor(np.asarray(train.images[chosen])).float() / 255 - dataset.mean[0]) / dataset.std[0]
    with torch.no_grad():
        logits = ctx.frozen_model(server.weights)(images).double().numpy()
    shifted = logits - logits.max(1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    expected = -log_probabilities[np.arange(len(chosen)), train.labels[chosen]].mean()
    assert table.logs[3]["loss_before"] == pytest.approx(expected, rel=1e-5)
    norm = (reply["delta"].double() / expected).square().sum().item()
    assert reply["curvature"].item() == pytest.approx(norm + 20 * expected, rel=1e-4)  # L = 1 / .05


def test_client_that_does_worse_counts_for_more(made_replies):
    """Opposite changes of one size: the step goes towards the client with the higher loss."""
    rows = []
    for sign, loss in ((1.0, 0.5), (-1.0, 2.0)):
        delta, curvature = fair_update(torch.tensor([sign], dtype=torch.float64), 1, loss, 10.0, 1.0)
        rows.append(({"delta": delta.tolist(), "curvature": curvature.item()}, 1))
    after = QFFL().absorb(GlobalModel(torch.zeros(1)), made_replies(*rows), None)
    assert after.weights.item() > 0


def test_norm_is_over_parameters_and_buffers_take_a_mean_of_old_and_new(bench):
    """BatchNorm: with one client, buffers end between what they were and what it found."""
    table = bench({"name": "qffl", "q": 1.0}, "model={name: bottleneck_resnet, width: 2}")
    ctx = table.server()
    server, replies = table.first_exchange(1)
    after = table.method.absorb(server, replies, ctx).weights
    parameters = ctx.model(server.weights).num_parameters
    loss, lipschitz = table.logs[1]["loss_before"], 20.0
    delta = replies[0]["delta"].double()
    norm = (delta[:parameters] / loss).square().sum().item()
    assert replies[0]["curvature"].item() == pytest.approx(norm + lipschitz * loss, rel=1e-4)
    trained = server.weights.double() - delta / loss / lipschitz
    moved = (after.double() - server.weights)[parameters:]
    full = (trained - server.weights)[parameters:]
    share = lipschitz * loss / replies[0]["curvature"].item()
    assert 0 < share < 1
    torch.testing.assert_close(moved, share * full, rtol=1e-3, atol=1e-5)


def test_update_and_one_number_go_up(run_small):
    row = run_small({"name": "qffl"}, "rounds=1").tables["rounds"].to_pylist()[0]
    assert (row["bytes_down"], row["bytes_up"]) == (3 * 4 * LENET5, 3 * 4 * (LENET5 + 1))


def test_client_with_no_loss_left_gives_finite_numbers():
    delta, curvature = fair_update(torch.ones(2, dtype=torch.float64), 2, 0.0, 10.0, 0.001)
    assert delta.isfinite().all()
    assert curvature.isfinite()
