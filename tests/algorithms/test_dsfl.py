"""DS-FL against hand-worked numbers, its identities, its three models of a round, its bytes."""

import numpy as np
import pytest
import torch
from runs import reply_of, run_in_process
from small_recipes import FEDGEMS_TABLE_4, MADE_UP, UNLABELLED

from rayfed_kd.algorithms.dsfl import DSFL, Options
from rayfed_kd.models.vectors import weighted_mean
from rayfed_kd.protocol import Message, Replies
from rayfed_kd.toolbox.losses import soft_cross_entropy

SMALL = {**MADE_UP, "method": {"name": "dsfl"}, "partition": UNLABELLED}
PUBLIC = "partition.public={count: 100, labels: false}"
LOGITS = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]], dtype=torch.float64)


def run(*overrides, recipe=SMALL):
    return run_in_process(recipe, *overrides)


def told(rows):
    """Replies of clients 0, 1, ...: [K, N0, C]."""
    return Replies([reply_of(client, probabilities=row) for client, row in enumerate(rows)])


def entropy(labels):
    labels = labels.double()
    return -torch.special.xlogy(labels, labels).sum().item()


@pytest.mark.parametrize(
    ("temperature", "labels", "spread"),
    [
        (0.1, [0.8437947345, 0.1141951994, 0.0420100661], 0.5242666167),
        (0.05, None, 0.1069208263),
        (0.25, None, 0.9717322853),
        (1.0, [0.3906938333, 0.3198730563, 0.2894331104], 1.0906356052),
        (0.3418807925, None, 1.0296530141),
    ],
)
def test_entropy_reduction_of_a_worked_mean(temperature, labels, spread):
    """Mean (.5, .3, .2), entropy 1.0296530141: T 1 is flatter, T 0.3418807925 as sharp."""
    found = DSFL(Options(temperature=temperature)).agreed(told([[[0.6, 0.3, 0.1]], [[0.4, 0.3, 0.3]]]))[0]
    assert entropy(found) == pytest.approx(spread, abs=1e-6)
    if labels is not None:
        assert found.tolist() == pytest.approx(labels, abs=1e-6)


def test_labels_are_made_of_probabilities_and_not_of_logits():
    """(0.6723, 0.2289, 0.0988) at T 0.1; mean logits divided by T would give (0.9644, ...)."""
    labels = DSFL().agreed(told(LOGITS.softmax(1)[:, None]))
    expected = [0.6723188492, 0.2288547520, 0.0988263989]
    assert labels[0].tolist() == pytest.approx(expected, abs=1e-6)
    wrong = (LOGITS.mean(0) / 0.1).softmax(0)
    assert wrong.tolist() == pytest.approx([0.9643697890, 0.0344029214, 0.0012272896], abs=1e-9)
    student = torch.tensor([[1.0, 0.5, 0.0]])
    assert soft_cross_entropy(labels, student).item() == pytest.approx(0.8935234455, abs=1e-6)


def test_limits_of_the_temperature_and_of_the_mean():
    mean = told([[[0.5, 0.3, 0.2]]])
    assert DSFL(Options(temperature=1e-4)).agreed(mean).tolist() == [[1.0, 0.0, 0.0]]
    flat = DSFL(Options(temperature=1e6)).agreed(mean)[0].tolist()
    assert flat == pytest.approx([1 / 3] * 3, abs=1e-6)
    uniform = DSFL().agreed(told([[[0.25] * 4]]))
    assert uniform.tolist() == [[0.25] * 4]


def test_simple_aggregation_is_the_plain_mean_bit_for_bit():
    rows = torch.rand(5, 30, 4, generator=torch.Generator().manual_seed(1)).softmax(2)
    found = DSFL(Options(aggregation="sa")).agreed(told(rows))
    assert torch.equal(found, weighted_mean(list(rows), [7.0] * 5))


@pytest.mark.parametrize("server_epochs", [0, 2])
def test_without_passes_of_the_clients_everybody_trains_alone_bit_for_bit(server_epochs, client_states):
    words = ["method.distill_epochs=0", f"method.server_epochs={server_epochs}", "rounds=3"]
    ours = client_states(SMALL, *words)
    alone = client_states({**SMALL, "method": {"name": "standalone"}}, "rounds=3")
    assert len(ours) == len(alone) == 4
    assert all(np.array_equal(*pair) for pair in zip(ours, alone, strict=True))


@pytest.mark.parametrize(
    ("clients", "server", "up", "down"), [(0, 0, 0, 0), (0, 1, 336, 0), (1, 0, 336, 336), (1, 1, 336, 336)]
)
def test_bytes_of_a_round_about_seven_samples(clients, server, up, down):
    """Seven of thirty, three classes, four clients: 7 x 3 x 4 x 4 = 336 bytes, where they are needed."""
    words = ["public_samples=7", f"distill_epochs={clients}", f"server_epochs={server}"]
    result = run(*[f"method.{word}" for word in words])
    for row in result.tables["rounds"].to_pylist():
        assert (row["bytes_up"], row["bytes_down"]) == (up, down)
    assert set(result.models) == ({"server"} if server else set())


def test_ledger_of_a_round_is_the_published_communication():
    """FedGEMS Table 4: DS-FL reaches 40 % after 3,692.63 MiB, 121 rounds of 16 clients and 25,000 samples."""
    rows = run(recipe={**SMALL, **FEDGEMS_TABLE_4}).tables["messages"].to_pylist()
    assert {row["kind"] for row in rows} == {"logits", "metadata"}
    logits = sum(row["bytes"] for row in rows if row["kind"] == "logits")
    assert logits == 2 * 16 * 25_000 * 40
    assert 121 * logits / 2**20 == pytest.approx(3692.63, abs=0.005)


ONE_BATCH = "local={epochs: 1, batch_size: 1000, optimizer: {name: sgd, lr: 0.5}}"


def by_hand(ctx, vector, ids, labels):
    """w - 0.5 grad of -sum_c Y_c log s_c."""
    student = ctx.model(vector)
    (-(labels * student(ctx.public.images(ids)).log_softmax(1)).sum(1)).mean().backward()
    student.trainable -= 0.5 * student.gradients
    return student.vector()


def test_clients_step_on_the_soft_labels_by_hand(bench):
    table = bench({"name": "dsfl", "public_samples": 7}, PUBLIC, ONE_BATCH)
    ctx = table.client(2)
    vector = ctx.initial_vector()
    labels = torch.rand(7, 10, generator=torch.Generator().manual_seed(3)).softmax(1)
    found, reply = table.method.distil(vector, Message(labels=labels, seed=11), ctx)
    assert not reply.parts
    again = table.client(2)
    expected = by_hand(again, vector, table.method.options.ids(11, again), labels)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


class Answering:
    """A cohort whose predictions are made up, and that keeps what it is told."""

    def __init__(self, rows):
        self.clients, self.rows, self.told = [0, 1], rows, []

    def broadcast(self, step, message):
        self.told.append((step.__name__, message))
        return told(self.rows) if step.__name__ == "update" else told([])


def test_round_is_update_aggregate_distil_and_a_step_of_the_server_by_hand(bench):
    """The server's own model takes the same labels, from where it was; no client's weights reach it."""
    table = bench({"name": "dsfl", "public_samples": 7}, PUBLIC, ONE_BATCH)
    ctx = table.server()
    rows = torch.rand(2, 7, 10, generator=torch.Generator().manual_seed(4)).softmax(2)
    cohort, begin = Answering(rows), ctx.initial_vector() * 0.9
    after = table.method.run_round(begin, cohort, ctx)
    (first, asked), (second, message) = cohort.told
    assert (first, second) == ("update", "distil")
    labels = (rows.double().mean(0) / 0.1).softmax(1)
    torch.testing.assert_close(message["labels"].double(), labels, rtol=0, atol=1e-6)
    assert asked["seed"] == message["seed"]
    again = table.server()
    expected = by_hand(again, begin, table.method.options.ids(asked["seed"], again), message["labels"])
    torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(after, begin, atol=1e-4)


def test_update_trains_and_then_predicts(bench):
    table = bench({"name": "dsfl"}, PUBLIC)
    ctx = table.client(1)
    vector = ctx.initial_vector()
    trained, reply = table.method.update(vector, Message(seed=1), ctx)
    alone, nothing = table.method.update(vector, Message(), table.client(1))
    assert torch.equal(trained, alone)
    assert not nothing.parts
    again = table.client(1)
    logits = again.frozen_model(trained)(again.public.images(again.public.ids))
    torch.testing.assert_close(reply["probabilities"], logits.softmax(1), rtol=0, atol=1e-6)
    assert not torch.equal(trained, vector)


def test_server_learns_what_its_clients_know():
    result = run("rounds=8", "data.samples=600", "partition.public.count=300")
    models = result.summary["models"]
    assert models["server"]["last"]["ua"] > 0.6  # three classes: 1/3 by chance
    assert models["personal"]["last"]["ua"] > 0.6


def test_clients_of_other_architectures_learn_together_and_the_servers_is_the_recipes():
    """MLP 64-8-3 has 64 * 8 + 8 + 8 * 3 + 3 = 547 parameters."""
    models = "client_models={models: [{name: mlp, hidden: 4}, {name: mlp, hidden: 16}]}"
    result = run(models, "rounds=6", "data.samples=600")
    assert result.models["server"].shape == (547,)
    assert result.summary["models"]["personal"]["last"]["ua"] > 0.6
