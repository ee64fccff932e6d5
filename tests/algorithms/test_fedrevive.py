"""FedRevive: blending, the generator's loss and proxies by hand; FedAvg where nothing is late; its order."""

import re
from dataclasses import replace

import pytest
import torch
from paths import ROOT
from small_recipes import OPTIONS

from rayfed_kd.algorithms.fedrevive import FedRevive, Options, blend, blending, of_classes
from rayfed_kd.cluster.engine.calls import Held
from rayfed_kd.protocol import Replies
from rayfed_kd.timing import UpdateRule
from rayfed_kd.toolbox.by_class.means import class_shares

METHOD = {"name": "fedrevive", **OPTIONS["fedrevive"]}
# t = (2, 0, -1), u = (1, 0.5, 0), v = (0, 1, 0)
T, U, V = torch.tensor([[2.0, 0, -1], [1, 0.5, 0], [0, 1, 0]], dtype=torch.float64)
SHARES = torch.tensor([[7 / 9], [2 / 9]], dtype=torch.float64)
LABEL = torch.tensor([0])
LATE = UpdateRule(normalisation="count", server_lr=0.5)


def loss(logits, shares, student=None, gaps=(0.5, 0.5), **options):
    gaps = torch.tensor(gaps[: len(logits)], dtype=torch.float64)
    rows = torch.stack(logits)[:, None]
    against = None if student is None else student[None]
    return FedRevive(Options(**options)).loss(rows, gaps, LABEL, shares, against).item()


@pytest.mark.parametrize(
    ("tau", "beta"),
    [
        (0, 0),
        (1, 0.0001096583),
        (10, 0.0109261996),
        (37, 0.1427636602),
        (75, 0.5),
        (100, 0.75),
        (149, 0.9998903417),
        (150, 1),
        (400, 1),
    ],
)
def test_share_of_the_distilled_change_grows_along_a_cosine(tau, beta):
    assert blending(tau, 75) == pytest.approx(beta, abs=1e-10)


def test_a_change_is_blended_and_buffers_are_the_clients():
    """w_sent 0.4, Delta_i 0.3, Delta_KD 0.05, tau 75: 0.5 (0.3 + 0.05) = 0.175; the buffer behind stays 9."""
    trained, sent = torch.tensor([0.7, 9.0]), torch.tensor([0.4, 5.0])
    assert blend(trained, sent, torch.tensor([0.05]), 0.5).tolist() == pytest.approx([0.575, 9.0])
    assert blend(trained, sent, torch.tensor([0.05]), 1.0).tolist() == pytest.approx([0.45, 9.0])


def test_shares_of_classes_are_by_proxies():
    assert torch.allclose(
        class_shares(torch.tensor([[7e6, 3e6], [2e6, 8e6]])), torch.tensor([[7 / 9, 3 / 11], [2 / 9, 8 / 11]])
    )


def test_loss_of_the_generator_by_hand():
    alone = {"lambda_feature": 0.0}
    assert loss([T, U], SHARES, **alone) == pytest.approx(0.2832734976, abs=1e-9)
    assert loss([T, U], SHARES) == pytest.approx(0.0015 + 0.2832734976, abs=1e-9)
    # The student is t: teacher t agrees with KL 0, teacher u with KL(u, t) = 0.3230176239.
    assert loss([T, U], SHARES, student=T) == pytest.approx(0.2775953282, abs=1e-9)
    only = {"lambda_feature": 0.0, "lambda_label": 0.0, "lambda_adv": 1.0}
    one = torch.ones(1, 1, dtype=torch.float64)
    assert loss([T], one, student=U, **only) == pytest.approx(-0.2551107197, abs=1e-9)
    assert loss([T], one, student=V, **only) == 0  # they predict other classes


def test_places_in_the_pool_are_of_the_class_asked_for_or_any_of_a_missing_one(bench):
    ctx = bench(METHOD).server()
    labels, certain = torch.tensor([1, 3, 1, 3, 3]), torch.zeros(10)
    certain[3] = 1.0
    assert set(of_classes(labels, certain * 2**24, 200, ctx).tolist()) == {1, 3, 4}
    assert set(of_classes(labels, certain.roll(1) * 2**24, 200, ctx).tolist()) == {0, 1, 2, 3, 4}


def late(table, older, taus, round_index):
    """Replies of clients 0, 1, ... to `older`, `taus` updates late, under a rule of differences."""
    replies = list(table.exchange(older, range(len(taus)), round_index))
    for reply, tau in zip(replies, taus, strict=True):
        reply.staleness, reply.sent = tau, Held({"student": older.weights.numpy()})
    return Replies(replies, LATE)


@pytest.fixture
def table(bench):
    return bench({**METHOD, "blend_after": 0, "teachers": 3}, "local.optimizer.lr=0.1")


def test_without_late_replies_it_is_fedavg_bit_for_bit(train):
    ours, plain = train(METHOD), train({"name": "fedavg"})
    assert torch.equal(ours["global"], plain["global"])


def test_a_proxy_is_the_mean_of_two_uploads_and_then_frozen(table):
    server, uploads = table.method.init_server(table.server(0)), []
    for index in (1, 2, 3):
        replies, again = table.exchange(server, [2], index), table.server(index)
        probes = torch.randn(64, *again.shape, generator=again.stream("probes"))
        odds = (again.frozen_model(replies[0]["student"])(probes) / 0.8).exp()
        uploads.append((odds / odds.sum(1, keepdim=True)).mean(0).detach())
        server = table.method.absorb(server, replies, table.server(index))
    wanted = (uploads[0] + uploads[1]) / 2
    assert server.clients.tolist() == [2, 2, 2] and not torch.allclose(wanted, uploads[2])
    # All three models of the client have it, the first one as well.
    assert torch.allclose(server.proxies(again) / 2**24, wanted.repeat(3, 1), atol=1e-6)


def test_the_newest_teachers_stand_first_in_the_order_of_arrival(table):
    server = table.method.init_server(table.server(0))
    backwards = Replies(list(table.exchange(server, [0, 1, 2, 3]))[::-1])
    assert backwards.clients == [0, 1, 2, 3] and backwards.arrival == [3, 2, 1, 0]
    after = table.method.absorb(server, backwards, table.server(1))
    assert after.clients.tolist() == [0, 1, 2]
    assert torch.equal(after.teachers[0], backwards[0]["student"])


def test_a_late_change_is_replaced_by_the_distilled_one_times_eta_s(table, monkeypatch):
    """Delta_KD = 0.25 everywhere; tau 400 takes it whole, tau 0 nothing: w + 0.5 (0.25 + Delta_1) / 2."""
    monkeypatch.setattr(
        FedRevive, "distillation", lambda self, state, teachers, ctx: torch.full_like(state.weights, 0.25)
    )
    first = table.method.init_server(table.server(0))
    second = replace(first, weights=first.weights + 1)
    replies = late(table, first, [400, 0], 2)
    fresh = replies[1]["student"].clone()
    after = table.method.absorb(second, replies, table.server(2))
    # A fresh reply's difference is to today's w, by the rule.
    wanted = second.weights + 0.5 * (0.25 + fresh - second.weights) / 2
    torch.testing.assert_close(after.weights, wanted)


def test_before_the_gate_late_replies_count_as_they_are(bench):
    table = bench({**METHOD, "synth_from": 50, "blend_after": 100})
    first = table.method.init_server(table.server(0))
    second = replace(first, weights=first.weights + 1)
    replies = late(table, first, [400, 3], 2)
    after = table.method.absorb(second, replies, table.server(2))
    assert torch.equal(after.weights, replies.aggregated("student", [1, 1], second.weights))
    assert not len(after.labels) and not after.moments


def test_synthesis_moves_the_generator_by_one_adam_step_towards_its_copy(table):
    """Adam's first step is its rate, whatever the gradient: 0.003 wherever the copy differs, else 0."""
    first = table.method.init_server(table.server(0))
    after = table.method.absorb(first, late(table, first, [0, 5], 1), table.server(1))
    moved = (after.generator - first.generator).abs()
    assert torch.all((moved < 1e-7) | ((moved - 0.003).abs() < 3e-4)) and (moved > 0.002).any()
    assert after.images.dtype == torch.uint8 and len(after.images) == len(after.labels) == 8
    again = table.method.absorb(after, late(table, after, [0, 5], 2), table.server(2))
    assert torch.equal(again.images[:8], after.images) and len(again.images) == 16


def test_the_pool_forgets_its_oldest_images(bench):
    table = bench({**METHOD, "pool": 12})
    server = table.method.init_server(table.server(0))
    before = None
    for index in (1, 2):
        before = server
        replies = late(table, server, [5], index)
        server = table.method.absorb(server, replies, table.server(index))
    assert len(server.images) == 12 and torch.equal(server.images[:4], before.images[4:])


def test_distillation_steps_on_the_mean_divergence_from_the_teachers(table):
    """Teachers that are the student diverge by 0; from others Adam's first step is its rate."""
    first = table.method.init_server(table.server(0))
    after = table.method.absorb(first, late(table, first, [0, 5], 1), table.server(1))
    own = replace(after, teachers=after.weights.repeat(2, 1), clients=torch.tensor([0, 1]))
    method = FedRevive(table.method.options.model_copy(update={"weight_decay": 0.0, "distill_lr": 1.0}))
    ctx = table.server(3)
    method.distillation(own, [ctx.frozen_model(one) for one in own.teachers], ctx)
    moving = method.distillation(after, [ctx.frozen_model(one) for one in after.teachers], table.server(3))
    assert ctx.logged()["distillation"][0] == pytest.approx(0, abs=1e-6)
    assert moving.abs().max() > 0.9


def test_trackers_of_the_released_network_begin_anew_with_each_update(bench, monkeypatch, tmp_path):
    page = (ROOT / "docs/extend/model.md").read_text().partition("## A network that tracks statistics")[2]
    (tmp_path / "tracked.py").write_text(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1])
    monkeypatch.syspath_prepend(tmp_path)
    table = bench(METHOD, "model={name: 'tracked:resnet18', width: 2}")
    server = table.method.init_server(table.server(0))
    replies = table.exchange(server, [0, 1])
    border = table.server().frozen_model(server.weights).num_parameters
    assert all(not torch.equal(one[border:], server.weights[border:]) for one in replies.vectors("student"))
    after = table.method.absorb(server, replies, table.server(1))
    assert torch.equal(after.weights[border:], server.weights[border:])
    assert not torch.equal(after.weights[:border], server.weights[:border])
