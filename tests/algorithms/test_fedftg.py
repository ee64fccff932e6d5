"""FedFTG: worked losses, the identity with FedAvg, both optimisations, what travels once."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from contexts import assert_distillation_moves
from torch.nn import functional as F

from rayfed_kd.algorithms.fedftg import FedFTG, Options
from rayfed_kd.models.vectors import weighted_mean
from rayfed_kd.protocol import Samples
from rayfed_kd.toolbox.by_class.means import class_shares
from rayfed_kd.toolbox.losses import target_divergence

METHOD = {
    "name": "fedftg",
    "generator": {"width": 4, "latent": 6},
    "iterations": 2,
    "student_steps": 2,
    "batch_size": 8,
}
LENET5 = 21_386  # parameters for 8x8 digits

# Counts (30, 10), (10, 50); logits (2, 0), (0, 1) of the clients and (1, .5) of w on one sample of class 1.
SHARES = class_shares(torch.tensor([[30.0, 10.0], [10.0, 50.0]], dtype=torch.float64))
TAUGHT = torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]]], dtype=torch.float64)
STUDENT = torch.tensor([[1.0, 0.5]], dtype=torch.float64)


def test_target_and_divergence_by_hand():
    """a = (1/6, 5/6): (0.3709173641, 0.6290826359); KL to softmax(1, .5) 0.1291761893."""
    target = torch.einsum("kb,kbc->bc", SHARES[:, [1]], TAUGHT.softmax(2))
    assert target[0].tolist() == pytest.approx([0.3709173641, 0.6290826359], abs=1e-9)
    assert target_divergence(target, STUDENT).item() == pytest.approx(0.1291761893, abs=1e-9)


def test_discrepancy_of_logits_by_hand():
    """|2 - 1|, |0 - .5| and |0 - 1|, |1 - .5|: .75 twice, and the weights sum to one."""
    apart = FedFTG(Options(discrepancy="l1_logits"))._discrepancy(TAUGHT, STUDENT)
    assert apart.flatten().tolist() == pytest.approx([0.75, 0.75])
    assert (SHARES[:, [1]] * apart).sum().item() == pytest.approx(0.75)


def test_discrepancy_is_kl_from_the_client_to_the_global_model():
    apart = FedFTG()._discrepancy(TAUGHT, STUDENT).flatten()
    for found, taught in zip(apart, TAUGHT, strict=True):
        p, q = taught[0].softmax(0).numpy(), STUDENT[0].softmax(0).numpy()
        assert found.item() == pytest.approx((p * np.log(p / q)).sum())


@pytest.mark.parametrize("form", ["per_sample", "cancelled"])
def test_generator_loss_is_weighted_cross_entropy_less_weighted_discrepancy(form):
    """Two samples, of class 1 and 0; the second's logits are the first's exchanged."""
    labels = torch.tensor([1, 0])
    taught, logits = torch.cat([TAUGHT, TAUGHT.flip(2)], 1), torch.cat([STUDENT, STUDENT.flip(1)])
    method = FedFTG(Options(lambda_cls=0.5, class_weights=form))
    found = method._generator_loss(taught, logits, labels, SHARES[:, labels], Mock()).item()
    weights = SHARES[:, labels].numpy()
    fits = np.array([[np.log1p(np.exp(2))] * 2, [np.log1p(np.exp(-1))] * 2])
    apart = method._discrepancy(taught, logits).numpy()
    fit = (weights * fits).mean(1).sum()
    if form == "cancelled":
        fit = (weights.mean(1) * fits.mean(1)).sum()
    assert found == pytest.approx(0.5 * fit - (weights * apart).mean(1).sum())


def test_without_iterations_it_is_fedavg_bit_for_bit(train):
    ours = train({**METHOD, "iterations": 0})["global"]
    assert torch.equal(ours, train({"name": "fedavg"})["global"])


def test_clients_start_from_the_fine_tuned_model(bench):
    """The average is FedAvg's before, another model after; the generator has moved as well."""
    table = bench(METHOD)
    server, replies = table.first_exchange(0, 1, 2)
    after = table.method.absorb(server, replies, table.server())
    mean = weighted_mean(replies.vectors("student"), replies.numbers("samples"))
    assert not torch.equal(after.weights, mean)
    assert not torch.equal(after.generator, server.generator)
    assert torch.equal(table.method.dispatch(after, table.server(2))["student"], after.weights)


def test_no_student_step_leaves_the_average_and_no_generator_step_the_generator(bench):
    for option, kept in (("student_steps", "weights"), ("generator_steps", "generator")):
        table = bench({**METHOD, option: 0})
        server, replies = table.first_exchange(0, 1)
        after = table.method.absorb(server, replies, table.server())
        mean = weighted_mean(replies.vectors("student"), replies.numbers("samples"))
        expected = {"weights": mean, "generator": server.generator}
        other = next(name for name in expected if name != kept)
        assert torch.equal(getattr(after, kept), expected[kept])
        assert not torch.equal(getattr(after, other), expected[other])


def test_student_step_is_gradient_descent_on_the_divergence_by_hand(bench):
    """One iteration, no generator step, one student step: w - 0.1 x .998 grad KL on the same images."""
    table = bench({**METHOD, "iterations": 1, "generator_steps": 0, "student_steps": 1})
    server, replies = table.first_exchange(0, 1)
    start = type(server)(server.weights, server.generator, {}, 1)
    after = table.method.absorb(start, replies, table.server())
    again = table.server()
    counts = torch.stack(list(replies.vectors("label_counts")))
    total, drawn = counts.sum(0), []
    for label in range(10):
        ends = (8 * total[: label + 1].sum() // total.sum(), 8 * total[:label].sum() // total.sum())
        drawn += [label] * int(ends[0] - ends[1])
    order = torch.randperm(8, generator=again.stream("label order"))
    labels = torch.tensor(drawn)[order]
    generator = again.frozen_model(server.generator, "generator")
    with torch.no_grad():
        images = generator(torch.randn(8, 6, generator=again.stream("noise")), labels)
        shares = (counts / total.clamp(min=1))[:, labels]
        target = torch.zeros(8, 10)
        for share, vector in zip(shares, replies.vectors("student"), strict=True):
            target += share[:, None] * again.frozen_model(vector)(images).softmax(1)
    mean = weighted_mean(replies.vectors("student"), replies.numbers("samples"))
    student = again.model(mean)
    loss = (target * (target.log() - F.log_softmax(student(images), dim=1))).nansum(1).mean()
    loss.backward()
    expected = mean - 0.1 * 0.998 * student.gradients
    torch.testing.assert_close(after.weights, expected, rtol=1e-4, atol=1e-6)


def test_generator_finds_images_on_which_client_and_global_model_differ(bench):
    """With the discrepancy alone it grows over the steps."""
    method = {**METHOD, "iterations": 1, "generator_steps": 20, "student_steps": 0, "batch_size": 32}
    table = bench(
        {**method, "lambda_cls": 0.0, "lambda_dis": 0.0, "generator_update": "sum"}, "local.epochs=5"
    )
    server, replies = table.first_exchange(0, 1, 2)
    ctx, found = table.server(), []
    ctx.log = lambda **values: found.extend(v.item() for name, v in values.items() if name == "discrepancy")
    table.method.absorb(server, replies, ctx)
    assert len(found) == 20
    assert np.mean(found[-3:]) > 1.5 * found[0]


def test_step_after_each_client_and_on_their_sum_are_one_with_one_client_and_two_with_more(bench):
    for clients, same in (([1], True), ([0, 1, 2], False)):
        tuned = []
        for update in ("each", "sum"):
            table = bench({**METHOD, "generator_update": update})
            server, replies = table.first_exchange(*clients)
            tuned.append(table.method.absorb(server, replies, table.server()).generator)
        assert torch.equal(*tuned) == same


def test_clients_models_and_average_keep_their_values(bench):
    """Only w and G learn: the replies are what they were, and the counts are kept for later rounds."""
    table = bench(METHOD, "model={name: bottleneck_resnet, width: 2}")
    method = table.method
    server, replies = table.first_exchange(0, 2)
    before = [vector.clone() for vector in replies.vectors("student")]
    after = method.absorb(server, replies, table.server())
    assert all(torch.equal(a, b) for a, b in zip(before, replies.vectors("student"), strict=True))
    again = table.exchange(after, [0, 1], 2)
    assert ["label_counts" in reply for reply in again] == [False, True]
    assert set(method.absorb(after, again, table.server(2)).label_counts) == {0, 1, 2}
    labels = table.setting.dataset.train.labels[table.setting.partition.train[2]]
    assert after.label_counts[2].tolist() == np.bincount(labels, minlength=10).tolist()


def test_up_go_models_and_once_the_label_counts_down_goes_the_model(run_small):
    rows = run_small(METHOD, "sampling.fraction=1.0").tables["rounds"].to_pylist()
    assert [row["bytes_up"] for row in rows] == [5 * 4 * (LENET5 + 10)] + [5 * 4 * LENET5] * 2
    assert {row["bytes_down"] for row in rows} == {5 * 4 * LENET5}


def test_what_the_generator_draws_is_shown(bench):
    table = bench(METHOD)
    server = table.method.init_server(table.server())
    shown = table.method.shown(server, None, table.server())["samples"]
    assert isinstance(shown, Samples)
    assert shown.images.shape == (64, 1, 8, 8)
    assert 0 <= shown.images.min() <= shown.images.max() <= 1


@pytest.mark.parametrize(("mode", "moved"), [("update", True), ("keep", False), ("eval", False)])
def test_running_statistics_stay_those_of_real_images_unless_they_are_to_follow(mode, moved, bench):
    net = "model={name: bottleneck_resnet, width: 2}"
    table = bench({**METHOD, "iterations": 1, "batchnorm": mode}, "local.epochs=1", net)
    assert_distillation_moves(table, statistics=moved)


def test_clients_gradients_are_clipped_at_their_norm(bench):
    """One step of plain SGD at rate 0.05: the model moves by at most 0.05 times the norm."""
    changes = ("local.epochs=1", "local.batch_size=1000", "local.optimizer={name: sgd, lr: 0.05}")
    moved = []
    for clip in (None, 1e-3, 1e6):
        table = bench({**METHOD, "clip": clip}, *changes)
        server, replies = table.first_exchange(0)
        moved.append(replies[0]["student"] - server.weights)
    assert moved[1].norm().item() == pytest.approx(0.05 * 1e-3, rel=1e-2)
    assert torch.equal(moved[0], moved[2])
