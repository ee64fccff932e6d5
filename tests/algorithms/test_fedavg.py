"""FedAvg against hand-worked numbers."""

import numpy as np
import pytest
import torch
from runs import reply_of
from small_recipes import FIVE_CLIENTS

import rayfed_kd
from rayfed_kd.algorithms.fedavg import FedAvg, Options, ServerState
from rayfed_kd.protocol import Replies

SMALL = {
    **FIVE_CLIENTS,
    "method": {"name": "fedavg"},
    "model": {"name": "mlp", "hidden": 8},
    "local": {"epochs": 1, "batch_size": 16, "optimizer": {"name": "sgd", "lr": 0.1}},
    "rounds": 2,
    "evaluation": {"samples": False},
}


def reply(client, value, samples):
    return reply_of(client, samples, student=[value])


@pytest.mark.parametrize(("weighting", "expected"), [("samples", 3.1), ("uniform", 7 / 3)])
def test_average_of_three_clients_by_hand(weighting, expected):
    """n = 10, 30, 60 and w = 1, 2, 4: 3.1; uniform 7 / 3."""
    replies = Replies([reply(0, 1.0, 10), reply(1, 2.0, 30), reply(2, 4.0, 60)])
    server = ServerState(torch.zeros(1), None, torch.zeros(1), None)
    method = FedAvg(Options(weighting=weighting))
    assert method.absorb(server, replies, None).weights.item() == pytest.approx(expected)


def test_order_of_arrival_changes_nothing():
    first = [reply(0, 0.1, 3), reply(1, 0.2, 5), reply(2, 0.7, 11)]
    server = ServerState(torch.zeros(1), None, torch.zeros(1), None)
    sums = [
        FedAvg().absorb(server, Replies(order), None).weights
        for order in (first, first[::-1], first[1:] + first[:1])
    ]
    assert torch.equal(sums[0], sums[1])
    assert torch.equal(sums[0], sums[2])


def test_one_full_batch_step_is_gradient_descent_on_the_weighted_objective(tmp_path):
    """Batch gradients averaged by n_k are the gradient of the mean over all samples."""
    changes = [
        "sampling.fraction=1.0",
        "local.batch_size=2000",
        "rounds=1",
        f"results.folder={tmp_path / 'a'}",
    ]
    prepared = rayfed_kd.prepare(SMALL, changes)
    result = rayfed_kd.run(SMALL, changes, local=True)
    module = (
        prepared.setting.module_pool()
        .lend("model", prepared.setting.module_pool().initial_vector("model"))
        .train()
    )
    chosen = np.concatenate(prepared.setting.partition.train)
    train = prepared.setting.dataset.train
    pixels = torch.tensor(np.asarray(train.images[chosen]), dtype=torch.float32) / 255
    images = (pixels - prepared.setting.dataset.mean[0]) / prepared.setting.dataset.std[0]
    loss = torch.nn.functional.cross_entropy(module(images), torch.tensor(train.labels[chosen]))
    loss.backward()
    expected = module.storage[: module.num_parameters] - 0.1 * module.gradients
    assert torch.allclose(torch.from_numpy(result.models["global"]), expected, atol=1e-6)


def test_tracking_oca_changes_no_bit_of_training(tmp_path):
    plain = rayfed_kd.run(SMALL, [f"results.folder={tmp_path / 'a'}"], local=True)
    tracked = rayfed_kd.run(SMALL, [f"results.folder={tmp_path / 'b'}", "method.track_oca=true"], local=True)
    assert np.array_equal(plain.models["global"], tracked.models["global"])
    assert set(tracked.models) == {"global", "oca"}


def test_full_participation_makes_oca_the_global_model(tmp_path):
    changes = ["method.track_oca=true", "sampling.fraction=1.0", f"results.folder={tmp_path / 'a'}"]
    result = rayfed_kd.run(SMALL, changes, local=True)
    assert np.allclose(result.models["global"], result.models["oca"], atol=1e-6)


def test_bytes_of_a_round_are_two_models_a_client(tmp_path):
    """MLP 64-8-10 has 64*8 + 8 + 8*10 + 10 = 610 parameters: 2,440 bytes a model, three clients."""
    result = rayfed_kd.run(SMALL, [f"results.folder={tmp_path / 'a'}"], local=True)
    row = result.tables["rounds"].to_pylist()[0]
    assert (row["bytes_up"], row["bytes_down"], row["cohort"]) == (3 * 2440, 3 * 2440, 3)
