"""FD: targets and term by hand, what is averaged, the identities with Stand-Alone, bytes."""

import pytest
import torch
from runs import run_in_process

from rayfed_kd.algorithms.fd import FD, Options, label_distillation, means_of_others
from rayfed_kd.protocol import Message
from rayfed_kd.toolbox.by_class.means import PerClass

TEACHER = torch.tensor([2.0, 0.0, -1.0], dtype=torch.float64)
STUDENT = torch.tensor([[1.0, 0.5, 0.0]], dtype=torch.float64)
CHANGES = ("model={name: mlp}", "sampling.fraction=1.0", "rounds=2")


def outputs(**by_label):
    """c0=[...]: mean outputs of labels 0, ..."""
    labels = [int(name[1:]) for name in by_label]
    values = torch.tensor(list(by_label.values()))
    return PerClass(torch.tensor(labels, dtype=torch.int32), values, torch.ones(len(labels)))


def test_targets_leave_the_client_out_by_hand():
    """Means (.8, .2), (.6, .4), (.4, .6) of one label."""
    latest = {k: outputs(c0=[p, 1 - p]) for k, p in enumerate((0.8, 0.6, 0.4))}
    for exclude, expected in ((True, (0.5, 0.6, 0.7)), (False, (0.6, 0.6, 0.6))):
        means = means_of_others(latest, range(3), 2, exclude_self=exclude)
        for client, first in enumerate(expected):
            torch.testing.assert_close(means[client].values, torch.tensor([[first, 1 - first]]))
            assert means[client].classes.tolist() == [0]


def test_mean_is_over_the_others_that_have_the_label_and_a_label_of_nobody_else_has_no_target():
    latest = {0: outputs(c0=[0.9, 0.1]), 1: outputs(c0=[0.5, 0.5], c1=[0.2, 0.8]), 2: outputs(c1=[0.0, 1.0])}
    means = means_of_others(latest, [0, 1, 2, 3], 2)
    assert means[0].classes.tolist() == [0, 1]
    torch.testing.assert_close(means[0].values, torch.tensor([[0.5, 0.5], [0.1, 0.9]]))
    torch.testing.assert_close(means[1].values, torch.tensor([[0.9, 0.1], [0.0, 1.0]]))
    torch.testing.assert_close(means[3].values, torch.tensor([[0.7, 0.3], [0.1, 0.9]]))
    assert means[3].counts.tolist() == [2, 2]
    alone = means_of_others({0: outputs(c1=[0.2, 0.8])}, [0], 2)
    assert len(alone[0].classes) == len(alone[0].values) == 0


def test_term_and_gradient_by_hand():
    """Target s(2, 0, -1), student (1, .5, 0): H, and s(student) - target."""
    logits = STUDENT.clone().requires_grad_()
    rows = TEACHER.softmax(0).expand(3, 3)
    loss = label_distillation(logits, torch.tensor([0]), rows, torch.ones(3, dtype=torch.bool))
    loss.backward()
    assert loss.item() == pytest.approx(0.7793773365, abs=1e-9)
    expected = [-0.3373143434, 0.1930006863, 0.1443136571]
    assert logits.grad[0].tolist() == pytest.approx(expected, abs=1e-9)


def test_sample_without_a_target_adds_nothing_and_counts_in_the_mean():
    rows = TEACHER.softmax(0).repeat(3, 1)
    rows[1] = torch.nan
    logits = STUDENT.repeat(2, 1).requires_grad_()
    present = torch.tensor([True, False, True])
    loss = label_distillation(logits, torch.tensor([0, 1]), rows, present)
    assert loss.item() == pytest.approx(0.7793773365 / 2, abs=1e-9)


@pytest.mark.parametrize("means", ["training", "last_epoch", "after"])
def test_outputs_are_means_by_label_of_what_they_say(means, bench):
    """Without steps of any length the three differ in nothing but how often a sample counts."""
    table = bench({"name": "fd", "means": means}, *CHANGES, "local.optimizer={lr: 1.0e-30}")
    ctx = table.client(0)
    _, reply = table.method.update(table.method.init_client(ctx), Message(), ctx)
    images, labels = (torch.cat(parts) for parts in zip(*ctx.samples(), strict=True))
    said = ctx.frozen_model(ctx.initial_vector()).predict(images).softmax(1)
    assert reply["classes"].tolist() == sorted(set(labels.tolist()))
    times = {"training": 2, "last_epoch": 1, "after": 1}[means]
    for label, mean, count in zip(reply["classes"], reply["outputs"], reply["counts"], strict=True):
        torch.testing.assert_close(mean, said[labels == label].mean(0))
        assert count == times * (labels == label).sum()


def test_the_three_windows_differ_where_the_model_learns(bench):
    sent = []
    for means in ("training", "last_epoch", "after"):
        table = bench({"name": "fd", "means": means}, *CHANGES)
        ctx = table.client(0)
        state, reply = table.method.update(table.method.init_client(ctx), Message(), ctx)
        sent.append((state, reply["outputs"]))
    assert all(torch.equal(sent[0][0], state) for state, _ in sent)
    assert not any(torch.equal(sent[a][1], sent[b][1]) for a, b in ((0, 1), (1, 2), (0, 2)))


@pytest.mark.parametrize("means", ["training", "after"])
def test_gamma_zero_and_one_client_are_stand_alone_bit_for_bit(means, client_states, small):
    one = "partition={name: iid, clients: 1}"
    for options, changes in (({"gamma": 0.0}, CHANGES), ({}, (*CHANGES, one))):
        fd, alone = (
            client_states({**small, "method": method}, *changes)
            for method in ({"name": "fd", "means": means, **options}, {"name": "standalone"})
        )
        assert all(torch.equal(a, b) for a, b in zip(fd, alone, strict=True))


def test_forms_of_training_give_the_same_model_and_the_second_round_has_the_term(run_small, losses):
    """A loop of its own, and the form that batches over clients; in one round, before targets differ."""
    alone = (*CHANGES, "local.vectorise=off")
    one, two = (losses(run_small({"name": "fd", "means": m}, *alone)) for m in ("training", "after"))
    assert one[0] == two[0]
    assert [set(row) for row in one] == [{"ce"}, {"ce", "kd"}]


def test_bytes_are_the_formulas(small):
    """Up 4 C_k (C + 2); down nothing, then 4 C (C + 1), the paper's 100 numbers among them."""
    recipe = {**small, "method": {"name": "fd"}, "partition": {"name": "iid", "clients": 4}}
    rows = run_in_process(recipe, *CHANGES).rows["messages"]
    counted = {(r["round"], r["client"], r["direction"], r["kind"]): r["bytes"] for r in rows}
    assert counted[1, 0, "up", "logits"] == counted[2, 0, "down", "logits"] == 4 * 100
    assert counted[1, 0, "up", "labels"] == counted[1, 0, "up", "counts"] == 4 * 10
    assert (1, 0, "down", "logits") not in counted


def test_gamma_weighs_the_term_by_hand():
    """Two samples of the student above, labels 0 and 1, gamma 2.5: CE + gamma H, both means over the batch.

    -log softmax(1, .5, 0) = .6802696, 1.1802696, 1.6802696. CE = (.6802696 + 1.1802696) / 2 = .9302696.
    The targets are (.5, .25, .25) and (.2, .2, .6), whose H are 1.0552696 and 1.3802696; mean 1.2177696.
    """
    student = STUDENT.repeat(2, 1).requires_grad_()
    rows = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6], [torch.nan] * 3], dtype=torch.float64)
    given = {"rows": rows, "present": torch.tensor([True, True, False])}
    batch = {"images": torch.empty(2), "labels": torch.tensor([0, 1])}
    loss = FD(Options(gamma=2.5)).loss({"student": lambda images: student}, batch, given)
    assert loss.value.item() == pytest.approx(0.9302696 + 2.5 * 1.2177696, abs=1e-6)
    assert {name: value.item() for name, value in loss.logged.items()} == pytest.approx(
        {"ce": 0.9302696, "kd": 1.2177696}, abs=1e-6
    )
