"""FedTGP: loss and margin by hand, the server's network against torch's, the identity with Stand-Alone."""

import pytest
import torch
from runs import run_in_process
from torch import nn

from rayfed_kd.algorithms.fedtgp import class_gap, made_prototypes, margin_loss

CHANGES = ("model={name: mlp, hidden: 6}", "sampling.fraction=1.0", "rounds=2", "method.server_epochs=3")


@pytest.mark.parametrize(("margin", "expected"), [(0.0, 0.1829703796), (3.0, 1.6159667140)])
def test_loss_by_hand(margin, expected):
    """p (0, 2) of class 0; prototypes (0, 0) and (3, 0): distances 2 and 3.6055512755."""
    made = torch.tensor([[0.0, 0.0], [3.0, 0.0]], dtype=torch.float64)
    sent = torch.tensor([[0.0, 2.0]], dtype=torch.float64)
    loss = margin_loss(sent, torch.tensor([0]), made, margin)
    assert loss.item() == pytest.approx(expected, abs=1e-9)


def test_prototype_that_is_met_gives_a_finite_gradient():
    made = torch.zeros(2, 3, requires_grad=True)
    margin_loss(torch.zeros(1, 3), torch.tensor([1]), made, 1.0).backward()
    assert made.grad.isfinite().all()


def test_gap_is_of_plain_means_by_hand():
    """(0, 0) and (0, 2) of class 0, (3, 1) of class 1: Q (0, 1) and (3, 1)."""
    sent, labels = torch.tensor([[0.0, 0.0], [0.0, 2.0], [3.0, 1.0]]), torch.tensor([0, 0, 1])
    assert class_gap(sent, labels, "pairs") == class_gap(sent, labels, "nearest") == 3.0


@pytest.mark.parametrize(("gap", "expected"), [("pairs", 5.0), ("nearest", 4.0)])
def test_gap_of_three_classes_by_hand(gap, expected):
    """Q (0, 0), (1, 0), (5, 0)."""
    sent = torch.tensor([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0]])
    assert class_gap(sent, torch.tensor([3, 7, 8]), gap) == expected


@pytest.mark.parametrize("gap", ["pairs", "nearest"])
def test_one_class_has_no_gap(gap):
    assert class_gap(torch.tensor([[1.0], [2.0]]), torch.tensor([4, 4]), gap) == 0.0


def test_server_trains_as_torchs_own_layers_do(bench):
    """A second way, in one batch of all prototypes, so that their order is of no account."""
    method = {"name": "fedtgp", "server_batch_size": 1000, "tau": 0.25}
    table = bench(method, *CHANGES)
    server, replies = table.first_exchange(0, 1, 2)
    sizes = [60, 36, 6, 36, 6]
    v, w, b, u, a = torch.split(server.trained, sizes)
    vectors, first, second = nn.Embedding(10, 6), nn.Linear(6, 6), nn.Linear(6, 6)
    layers = nn.ModuleList([vectors, first, second])
    with torch.no_grad():
        for parameter, part in zip(layers.parameters(), (v, w, b, u, a), strict=True):
            parameter.copy_(part.view(parameter.shape))
    sent, labels = (torch.cat(list(replies.vectors(name))) for name in ("prototypes", "classes"))
    sgd = torch.optim.SGD(layers.parameters(), lr=0.05, momentum=0.5)
    for _ in range(3):
        made = second(first(vectors(torch.arange(10))).relu())
        logits = -torch.cdist(sent, made)
        logits[torch.arange(len(labels)), labels.long()] -= 0.25
        sgd.zero_grad()
        nn.functional.cross_entropy(logits, labels.long()).backward()
        sgd.step()
    after = table.method.absorb(server, replies, table.server())
    expected = torch.cat([parameter.detach().flatten() for parameter in layers.parameters()])
    torch.testing.assert_close(after.trained, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(after.prototypes.values, made_prototypes(after.trained, 10, 6))
    assert after.prototypes.classes.tolist() == list(range(10))
    assert class_gap(sent, labels, "pairs") > 0.25


def test_lambda_zero_trains_as_stand_alone_bit_for_bit(client_states, small):
    changes = ("model={name: mlp, hidden: 6}", "rounds=2")
    alone, own, drawn = (
        client_states({**small, "method": method}, *changes)
        for method in (
            {"name": "standalone"},
            {"name": "fedtgp", "lambda_proto": 0.0, "server_epochs": 1},
            {"name": "fedtgp", "server_epochs": 1},
        )
    )
    assert all(torch.equal(a, b) for a, b in zip(own, alone, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(drawn, alone, strict=True))


def test_bytes_are_the_formulas_and_no_counts_travel(small):
    partition = {"name": "classes", "classes_per_client": 3, "clients": 5}
    recipe = {**small, "method": {"name": "fedtgp"}, "partition": partition}
    rows = [row for row in run_in_process(recipe, *CHANGES).rows["messages"] if row["kind"] != "metadata"]
    counted = {(row["round"], row["client"], row["direction"], row["kind"]): row["bytes"] for row in rows}
    for client in range(5):
        assert counted[1, client, "up", "prototypes"] + counted[1, client, "up", "labels"] == 4 * 3 * 7
        assert (1, client, "down", "prototypes") not in counted
        assert counted[2, client, "down", "prototypes"] + counted[2, client, "down", "labels"] == 4 * 10 * 7
    assert "counts" not in {kind for *_, kind in counted}
