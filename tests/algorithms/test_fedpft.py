"""FedPFT: Gaussians by hand, draws, the head, bytes of each covariance, classes of one sample."""

import numpy as np
import pytest
import torch
from runs import run_in_process
from small_recipes import FOUR_CLIENTS

from rayfed_kd.algorithms.fedpft import HEAD, Gaussian, draws, gaussian
from rayfed_kd.protocol import ClientContext, ClientData, DispatchFacts
from rayfed_kd.toolbox.layers import head_place

FEATURES = 84  # of lenet5
LENET5 = 21_386
LENGTHS = {"spherical": 1, "diagonal": FEATURES, "full": FEATURES * (FEATURES + 1) // 2}
ROWS = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 2.0], [4.0, 2.0]])
ONCE = {**FOUR_CLIENTS, "rounds": 1, "sampling": {"fraction": 1.0}, "evaluation": {"samples": False}}


@pytest.mark.parametrize(
    ("kind", "spread"),
    [("spherical", [2.500001]), ("diagonal", [4.000001, 1.000001]), ("full", [4.000001, 0.0, 1.000001])],
)
def test_gaussian_by_hand(kind, spread):
    fit = gaussian(ROWS, kind)
    assert fit.mean.tolist() == [2.0, 1.0]
    assert fit.spread.tolist() == pytest.approx(spread, abs=1e-12)


def test_square_of_side_two():
    square = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0]])
    assert gaussian(square, "spherical").spread.item() == pytest.approx(1.000001, abs=1e-12)


@pytest.mark.parametrize(
    ("spread", "covariance"),
    [([2.0], [[2, 0], [0, 2]]), ([4.0, 1.0], [[4, 0], [0, 1]]), ([4.0, 1.5, 1.0], [[4, 1.5], [1.5, 1]])],
)
def test_draws_have_the_moments(spread, covariance):
    stream = torch.Generator().manual_seed(1)
    rows = draws(Gaussian(torch.tensor([2.0, -1.0]), torch.tensor(spread)), 40_000, stream)
    assert rows.dtype == torch.float32
    # The standard error of a mean is at most 0.01, of a variance 0.03: here four of them.
    assert rows.mean(0).tolist() == pytest.approx([2.0, -1.0], abs=0.04)
    np.testing.assert_allclose(torch.cov(rows.T), covariance, atol=0.12)


@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize(("numbers", "size"), [("float16", 2), ("float32", 4)])
def test_bytes_of_each_class(kind, numbers, size):
    """size (K_f + s) + 8 a class up; the model down, once a client."""
    method = {"name": "fedpft", "covariance": kind, "numbers": numbers, "epochs": 0}
    rows = run_in_process({**ONCE, "method": method}).tables["messages"].to_pylist()
    assert [row["bytes"] for row in rows if row["direction"] == "down"] == [4 * LENET5] * 4
    for client in range(4):
        up = {
            row["kind"]: row["bytes"] for row in rows if (row["client"], row["direction"]) == (client, "up")
        }
        classes = up["labels"] // 4
        assert up["counts"] == 4 * classes
        assert up["prototypes"] == size * (FEATURES + LENGTHS[kind]) * classes


def test_a_codec_takes_float16_numbers_as_well():
    """8 bits a number and the two ends of each tensor, in place of 16."""
    changes = ["codec.up.prototypes={name: uniform, bits: 8}"]
    rows = run_in_process({**ONCE, "method": {"name": "fedpft"}}, *changes).tables["messages"].to_pylist()
    up = [row for row in rows if row["kind"] == "prototypes"]
    assert len(up) == 4
    assert all(0.5 * row["raw_bytes"] < row["bytes"] < 0.55 * row["raw_bytes"] for row in up)


def test_gaussians_are_those_of_the_clients_features(bench):
    table = bench({"name": "fedpft", "numbers": "float32", "covariance": "diagonal"})
    server = table.method.init_server(table.server())
    (reply,) = table.exchange(server, [2])
    ctx = table.client(2)
    model = ctx.frozen_model(server.weights)
    batches = list(ctx.samples())
    features = torch.cat([model.features(images) for images, _ in batches]).double()
    labels = torch.cat([own for _, own in batches])
    counts = ctx.label_counts()
    assert reply["class_labels"].tolist() == (counts > 1).nonzero().flatten().tolist()
    assert reply["class_counts"].tolist() == counts[counts > 1].tolist()
    for row, label in enumerate(reply["class_labels"].tolist()):
        own = features[labels == label]
        torch.testing.assert_close(reply["class_means"][row], own.mean(0).float())
        wanted = own.var(0, unbiased=False) + 1e-6
        torch.testing.assert_close(reply["class_covariances"][row], wanted.float())


def test_a_class_with_one_sample_is_left_out(bench, made_replies):
    """Of class 0 two samples, of class 1 one; and a server that nobody sent a Gaussian."""
    table = bench({"name": "fedpft"})
    own = table.setting.partition.train[0]
    labels = table.data.labels(torch.from_numpy(own))
    chosen = [*own[labels.numpy() == 0][:2], *own[labels.numpy() == 1][:1]]
    local, seed = table.setting.server_facts(1).local, table.setting.recipe.seed
    share, facts = ClientData(np.array(chosen), "none", local), DispatchFacts(0, 1, 1)
    ctx = ClientContext(table.module_pool, table.data, share, facts, seed)
    assert ctx.label_counts().tolist()[:2] == [2.0, 1.0]
    server = table.method.init_server(table.server())
    _, reply = table.method.client_update(None, table.method.dispatch(server, table.server()), ctx)
    assert (reply["class_labels"].tolist(), reply["class_counts"].tolist()) == ([0], [2.0])
    nothing = {name: part[:0].tolist() for name, part in reply.parts.items()}
    assert table.method.absorb(server, made_replies((nothing, 1)), table.server()) is server


def test_only_the_head_changes_and_without_epochs_it_is_its_first_one(bench):
    heads = {}
    for epochs in (0, 20):
        table = bench({"name": "fedpft", "epochs": epochs})
        server = table.method.init_server(table.server())
        after = table.method.absorb(server, table.exchange(server, [0, 1, 2]), table.server())
        place = head_place(table.server().frozen_model(server.weights))
        assert torch.equal(after.weights[: place.start], server.weights[: place.start])
        assert torch.equal(after.weights[place.stop :], server.weights[place.stop :])
        heads[epochs] = after.weights[place]
    assert torch.equal(heads[0], table.server().initial_vector(HEAD))
    assert not torch.allclose(heads[20], heads[0], atol=1e-3)


def test_samples_that_nobody_trains_on_make_no_batch_of_one(bench):
    """BatchNorm cannot be trained on one sample; here nobody trains it."""
    table = bench({"name": "fedpft"}, "model={name: 'zoo_modules:BatchNorm1d'}", "local.batch_size=1")
    assert set(table.client(0).local.batch_sizes(table.client(0).num_samples)) == {1}


def test_head_learns_the_classes_from_draws():
    """Digits, on features of a random network: ten classes, a tenth is chance."""
    adam = {"name": "adam", "lr": 0.01}
    method = {"name": "fedpft", "epochs": 20, "optimizer": adam}
    changes = ["data.fraction=1.0"]
    (row,) = run_in_process({**ONCE, "method": method}, *changes).tables["metrics"].to_pylist()
    assert row["amp"] > 0.6
