"""Cronus against hand-worked numbers, its identities, its answer to liars, its bytes."""

import math

import numpy as np
import pytest
import torch
from runs import run_in_process, simulation_of
from small_recipes import FEDGEMS_TABLE_4, MADE_UP, UNLABELLED
from torch.nn import functional as F

from rayfed_kd.algorithms import cronus
from rayfed_kd.algorithms.cronus import ClientState, Cronus, Options
from rayfed_kd.cluster.server.cohort import EngineCohort
from rayfed_kd.models.vectors import weighted_mean
from rayfed_kd.protocol import Message

SMALL = {**MADE_UP, "method": {"name": "cronus"}, "partition": UNLABELLED}
P = [[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.65, 0.2, 0.15], [0.8, 0.1, 0.1], [0.0, 0.0, 1.0]]
PUBLIC = "partition.public={count: 100, labels: false}"


def run(*overrides, recipe=SMALL):
    return run_in_process(recipe, *overrides)


@pytest.fixture
def replies(made_replies):
    """The worked probabilities of one public sample, a client each."""
    return made_replies(*[({"probabilities": [row]}, 1) for row in P])


@pytest.fixture
def ctx(bench):
    return bench({"name": "cronus"}, PUBLIC).server()


def test_robust_mean_of_the_worked_probabilities(replies, ctx, monkeypatch):
    """Top eigenvalue 0.2095264555 above a bound of 0.05; Z = 0.5 cuts the last: (.6875, .2, .1125)."""
    halves = lambda stream: lambda count: torch.full((count,), 0.5)  # noqa: E731
    monkeypatch.setattr(cronus, "linear_density", halves)
    found = Cronus(Options(sigma2=0.05 / 9)).agreed(replies, ctx)
    assert found.tolist() == [pytest.approx([0.6875, 0.2, 0.1125], abs=1e-6)]


def test_whatever_is_drawn_the_outlier_goes_and_the_rest_gives_a_probability_vector(replies, bench):
    """The farthest always goes; the honest lie in (.6 to .8, .1 to .3, .1 to .15)."""
    for index in range(1, 30):
        ctx = bench({"name": "cronus"}, PUBLIC).server(index)
        found = Cronus().agreed(replies, ctx)[0]
        assert found.sum().item() == pytest.approx(1)
        assert 0.1 - 1e-6 <= found[2] <= 0.15 + 1e-6


def test_bound_of_nine_keeps_every_probability_vector(ctx, made_replies):
    """sigma^2 = 1: half of the clients at one corner, half at another, the largest variance there is, 1/2."""
    corners = made_replies(*[({"probabilities": [row]}, 1) for row in ([1.0, 0.0], [0.0, 1.0]) * 2])
    assert Cronus(Options(sigma2=1.0)).agreed(corners, ctx).tolist() == [[0.5, 0.5]]


def test_infinite_bound_is_the_plain_mean(ctx, made_replies):
    rows = torch.rand(6, 40, 5, generator=torch.Generator().manual_seed(1)).softmax(2)
    sent = made_replies(*[({"probabilities": row.tolist()}, 10 * k + 1) for k, row in enumerate(rows)])
    found = Cronus(Options(sigma2=math.inf)).agreed(sent, ctx)
    torch.testing.assert_close(found, weighted_mean(list(rows), [1.0] * 6), rtol=0, atol=1e-7)


def test_without_public_epochs_everybody_trains_alone_bit_for_bit(client_states):
    ours = client_states(SMALL, "method.public_epochs=0", "rounds=3")
    alone = client_states({**SMALL, "method": {"name": "standalone"}}, "rounds=3")
    assert len(ours) == len(alone) == 4
    assert all(np.array_equal(state.model, model) for state, model in zip(ours, alone, strict=True))


def test_without_public_epochs_nothing_travels():
    rows = run("method.public_epochs=0").tables["rounds"].to_pylist()
    assert [(row["bytes_up"], row["bytes_down"]) for row in rows] == [(0, 0)] * 2


def test_predictions_are_the_softmax_of_a_client_that_trained_first_and_only_once(bench):
    """Two epochs of cross entropy by hand, then softmax; asked again it does not train again."""
    sgd = "local.optimizer={name: sgd, lr: 0.05}"
    table = bench({"name": "cronus", "start_epochs": 2}, PUBLIC, sgd)
    ctx = table.client(1)
    fresh = table.method.init_client(ctx)
    client, reply = table.method.predict(fresh, Message(seed=1), ctx)
    again = table.client(1)
    student = again.model(fresh.model)
    for epoch in range(2):
        for images, labels in again.epoch(epoch):
            student.zero_gradients()
            F.cross_entropy(student(images), labels).backward()
            student.trainable -= 0.05 * student.gradients
    torch.testing.assert_close(client.model, student.vector(), rtol=0, atol=1e-6)
    assert client.started
    assert not fresh.started
    logits = again.frozen_model(client.model)(again.public.images(again.public.ids))
    torch.testing.assert_close(reply["probabilities"], logits.softmax(1), rtol=0, atol=1e-6)
    kept, reply = table.method.predict(client, Message(seed=1), table.client(1, 2, 2))
    assert torch.equal(kept.model, client.model)
    torch.testing.assert_close(reply["probabilities"], logits.softmax(1), rtol=0, atol=1e-6)


def test_update_is_a_step_on_soft_labels_then_one_on_the_own_data_by_hand(bench):
    """One batch each: gradients of -sum_c Y_c log s_c over 7 samples, then of the cross entropy."""
    method = {"name": "cronus", "public_samples": 7}
    words = ["local={epochs: 1, batch_size: 1000, optimizer: {name: sgd, lr: 0.5}}"]
    table = bench(method, PUBLIC, *words)
    ctx = table.client(2)
    vector, labels = ctx.initial_vector(), torch.rand(7, 10, generator=torch.Generator().manual_seed(3))
    labels = labels.softmax(1)
    message = Message(labels=labels, seed=11)
    client, reply = table.method.update(ClientState(vector, True), message, ctx)
    assert not reply.parts
    assert client.started
    again = table.client(2)
    ids = table.method.options.ids(11, again)
    student = again.model(vector)
    (-(labels * student(again.public.images(ids)).log_softmax(1)).sum(1)).mean().backward()
    student.trainable -= 0.5 * student.gradients
    student.zero_gradients()
    images, hard = next(iter(again.epoch(0)))
    F.cross_entropy(student(images), hard).backward()
    student.trainable -= 0.5 * student.gradients
    torch.testing.assert_close(client.model, student.vector(), rtol=1e-5, atol=1e-6)


def test_public_training_lowers_the_loss_on_the_others_labels():
    """With one private batch a round."""
    quiet = ["method.start_epochs=5", "local.epochs=0.001", "method.public_epochs=20", "rounds=6"]
    rows = run(*quiet, "method.sigma2=.inf").tables["rounds"].to_pylist()
    plain = run("method.start_epochs=5", "local.epochs=0.001", "rounds=1")
    first = dict(plain.tables["rounds"].to_pylist()[0]["logged"])["soft_ce"]
    assert dict(rows[-1]["logged"])["soft_ce"] < first


def attacked(**options):
    """A first round in which client 3 answers with the honest mean plus ten: its labels; honest answers."""
    recipe = {**SMALL, "method": {"name": "cronus", **options}}
    run = simulation_of(recipe, "attack={name: paf, clients: [3], scale: 10.0}", "partition.clients=6")
    ctx, method = run.setting.server_context(1), run.setting.method
    run.begin()
    replies = EngineCohort(1, run.run_state).broadcast(method.predict, Message(seed=1))
    honest = torch.stack([r["probabilities"] for r in replies if r.client != 3])
    assert torch.allclose(replies[3]["probabilities"], honest.mean(0) + 10)
    return method.agreed(replies, ctx), honest


def test_naive_poisoning_is_filtered_out_and_moves_the_plain_mean_by_its_share():
    """mu + 10 among five honest ones: mean mu + 10 / 6. Filtered, the labels lie among the honest."""
    labels, honest = attacked()
    assert (labels >= honest.min(0).values - 1e-6).all()
    assert (labels <= honest.max(0).values + 1e-6).all()
    plain, _ = attacked(sigma2=math.inf)
    torch.testing.assert_close(plain, honest.mean(0) + 10 / 6, rtol=0, atol=1e-5)


def test_ledger_of_a_round_is_the_published_communication():
    """FedGEMS Table 4: a round of 16 clients and 25,000 samples is 2 x 16 x 25,000 x 40 B = 30.517578 MiB."""
    rows = run(recipe={**SMALL, **FEDGEMS_TABLE_4}).tables["messages"].to_pylist()
    sums = dict.fromkeys(("up", "down"), 0)
    for row in rows:
        sums[row["direction"]] += row["bytes"] if row["kind"] == "logits" else 0
    assert {row["kind"] for row in rows} == {"logits", "metadata"}
    assert sums == {"up": 16 * 25_000 * 40, "down": 16 * 25_000 * 40}
    assert 20 * sum(sums.values()) / 2**20 == pytest.approx(610.35, abs=0.005)  # its 20 rounds to 40 %


def test_bytes_of_a_round_that_is_about_seven_samples():
    """Seven of thirty, three classes, four clients: 7 x 3 x 4 x 4 = 336 bytes either way."""
    for row in run("method.public_samples=7").tables["rounds"].to_pylist():
        assert (row["bytes_up"], row["bytes_down"]) == (336, 336)


def test_clients_of_other_architectures_learn_together():
    models = "client_models={models: [{name: mlp, hidden: 4}, {name: mlp, hidden: 16}]}"
    result = run(models, "rounds=6", "data.samples=600")
    assert result.summary["models"]["personal"]["last"]["ua"] > 0.6  # three classes: 1/3 by chance
