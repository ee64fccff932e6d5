"""FedRevive: blending, the generator's loss and proxies by hand; FedAvg where nothing is late; its order."""

import re
from dataclasses import replace

import numpy as np
import pytest
import small_recipes
import torch
from disturbed_runs import run_disturbed
from paths import ROOT
from simulated_runs import RECIPE, Case
from small_recipes import OPTIONS
from torch.nn import functional as F

from rayfed_kd.algorithms.fedrevive import FedRevive, Options, blend, blending
from rayfed_kd.cluster.engine.calls import Held
from rayfed_kd.errors import RecipeError
from rayfed_kd.protocol import Replies
from rayfed_kd.timing import UpdateRule
from rayfed_kd.toolbox.by_class.means import class_shares, drawn_places
from rayfed_kd.toolbox.data_free.synthesis import LossGuard

METHOD = {"name": "fedrevive", **OPTIONS["fedrevive"]}
PUBLIC = "partition.public={count: 40, labels: false}"
LENET5 = 21_386  # parameters for 8x8 digits
OFF = LossGuard({}, on=False)
# t = (2, 0, -1), u = (1, 0.5, 0), v = (0, 1, 0)
T, U, V = torch.tensor([[2.0, 0, -1], [1, 0.5, 0], [0, 1, 0]], dtype=torch.float64)
SHARES = torch.tensor([[7 / 9], [2 / 9]], dtype=torch.float64)
LABEL = torch.tensor([0])
LATE = UpdateRule(normalisation="count", server_lr=0.5)


def loss(logits, shares, student=None, gaps=(0.5, 0.5), guard=OFF, **options):
    gaps = torch.tensor(gaps[: len(logits)], dtype=torch.float64)
    rows = torch.stack(logits)[:, None]
    against = None if student is None else student[None]
    return Options(**options).loss(rows, gaps, LABEL, shares, against, guard).item()


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
    assert set(drawn_places(labels, certain * 2**24, 200, ctx).tolist()) == {1, 3, 4}
    assert set(drawn_places(labels, certain.roll(1) * 2**24, 200, ctx).tolist()) == {0, 1, 2, 3, 4}


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


def check_a_late_change_is_replaced(table, monkeypatch, round_index):
    """Delta_KD = 0.25 everywhere; tau 400 takes it whole, tau 0 nothing: w + 0.5 (0.25 + Delta_1) / 2."""
    monkeypatch.setattr(
        FedRevive,
        "distillation",
        lambda self, state, teachers, guard, ctx: torch.full_like(state.weights, 0.25),
    )
    first = table.method.init_server(table.server(0))
    second = replace(first, weights=first.weights + 1)
    replies = late(table, first, [400, 0], round_index)
    fresh = replies[1]["student"].clone()
    after = table.method.absorb(second, replies, table.server(round_index))
    # A fresh reply's difference is to today's w, by the rule.
    wanted = second.weights + 0.5 * (0.25 + fresh - second.weights) / 2
    torch.testing.assert_close(after.weights, wanted)


def test_a_late_change_is_replaced_by_the_distilled_one_times_eta_s(table, monkeypatch):
    check_a_late_change_is_replaced(table, monkeypatch, 2)


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
    method.distillation(own, [ctx.frozen_model(one) for one in own.teachers], OFF, ctx)
    teachers = [ctx.frozen_model(one) for one in after.teachers]
    moving = method.distillation(after, teachers, OFF, table.server(3))
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


# True label counts.


def test_true_counts_are_the_shares_of_classes_in_place_of_probes(bench, monkeypatch):
    table = bench({**METHOD, "histograms": True, "teachers": 3})
    labels, server = table.setting.dataset.train.labels, table.method.init_server(table.server(0))
    monkeypatch.setattr(torch, "randn", None)  # nothing is probed
    replies = table.exchange(server, [0, 2])
    server = table.method.absorb(server, replies, table.server(1))
    found = server.proxies(table.server(1)).numpy() / 2**24
    for row, client in zip(found, server.clients.tolist(), strict=True):
        counts = np.bincount(labels[table.setting.partition.train[client]], minlength=10)
        assert np.allclose(row, counts / counts.sum(), atol=1e-7)
    assert server.clients.tolist() == [2, 0]


def test_one_without_samples_has_all_classes_alike(bench):
    table = bench({**METHOD, "histograms": True})
    server = table.method.init_server(table.server(0))
    (reply,) = table.exchange(server, [1])
    reply.parts = {**reply.parts, "label_counts": torch.zeros(10)}
    after = table.method.absorb(server, Replies([reply]), table.server(1))
    assert torch.allclose(after.proxies(table.server(1)) / 2**24, torch.full((1, 10), 0.1))


@pytest.mark.parametrize(("histograms", "more"), [("probe", 0), ("true", 4 * 10)])
def test_up_go_the_model_and_with_true_counts_four_bytes_a_class_with_each_reply(histograms, more, run_small):
    result = run_small(METHOD, f"method.histograms={histograms}")
    rows = result.tables["rounds"].to_pylist()
    assert [row["bytes_up"] for row in rows] == [3 * (4 * LENET5 + more)] * 3
    assert [row["bytes_down"] for row in rows] == [3 * 4 * LENET5] * 3


# Public images in place of the pool.


@pytest.fixture
def public(bench):
    options = {
        "images": "public",
        "augment": "none",
        "weight_decay": 0.0,
        "distill_lr": 0.01,
        "batch_size": 64,
    }
    return bench({**METHOD, "teachers": 1, "synth_from": 50, **options}, PUBLIC)


def test_with_public_images_there_is_no_generator(public, bench):
    assert not public.method.architectures() and "generator" not in public.setting.builders
    assert "generator" in bench(METHOD).setting.builders
    first = public.method.init_server(public.server(0))
    later = public.method.absorb(first, late(public, first, [5, 0], 9), public.server(9))
    for state in (first, later):
        kept = [state.generator, state.images, state.labels]
        assert not any(one.numel() for one in kept) and not state.moments
        assert not state.sums.any() and not state.counts.any()  # and nothing is probed


def test_a_step_on_public_images_is_adams_on_the_divergence_from_the_teacher_on_them(public):
    """One teacher, one step: Adam's first one is - lr g / (|g| + eps), g by torch's own divergence."""
    server = public.method.init_server(public.server(0))
    (reply,) = public.exchange(server, [3])
    server = replace(server, teachers=reply["student"][None], clients=torch.tensor([3]))
    ctx = public.server(2)
    found = public.method.distillation(server, [ctx.frozen_model(reply["student"])], OFF, ctx)

    again = public.server(2)
    ids = torch.randint(40, (1, 64), generator=again.stream("places"))[0]
    images = torch.cat([batch for _, batch in again.public.in_order()])[ids]
    student = again.model(server.weights)
    said = again.frozen_model(reply["student"])(images).softmax(1)
    F.kl_div(student(images).log_softmax(1), said, reduction="batchmean").backward()
    g = student.gradients[: student.num_parameters]
    sure = g.abs() > 1e-5
    wanted = -0.01 * g / (g.abs() + 1e-8)
    assert sure.float().mean() > 0.3
    torch.testing.assert_close(found[sure], wanted[sure], rtol=1e-3, atol=1e-6)


def test_with_public_images_late_changes_are_blended_without_a_synthesis_before(public, monkeypatch):
    """synth_from is 50, and this is the third update."""
    check_a_late_change_is_replaced(public, monkeypatch, 3)


PUBLIC_MISSING = "partition.public is missing: fedrevive needs public samples, as"


@pytest.mark.parametrize(
    ("options", "change", "told"),
    [
        ({"images": "public"}, "partition.public=null", PUBLIC_MISSING),
        (
            {"images": "public", "histograms": True},
            PUBLIC,
            "method.histograms: images: public reads no classes; expected probe, not true",
        ),
        ({"histograms": False}, PUBLIC, "method.histograms"),
        ({"images": "real"}, PUBLIC, "method.images"),
    ],
)
def test_what_an_option_lacks_is_refused_before_the_first_round(options, change, told, bench):
    with pytest.raises(RecipeError) as error:
        bench({**METHOD, **options}, change)
    assert told in str(error.value)


def test_with_public_samples_it_takes_text_too_unless_images_are_augmented(run_small):
    text = ("data={name: synthetic_text, samples: 200, vocabulary: 64, length: 8}", "partition.min_size=4")
    recipe = (*text, "model={name: word_bag, width: 8, hidden: [8]}", PUBLIC)
    method = {**METHOD, "images": "public", "blend_after": 0}
    late_replies = ("schedule={name: buffered, buffer: 1, normalisation: count}", "clock.name=lognormal")
    result = run_small({**method, "augment": "none"}, *recipe, *late_replies, "rounds=8")
    assert any("distillation" in dict(row["logged"]) for row in result.tables["rounds"].to_pylist())
    with pytest.raises(RecipeError, match=r"method\.augment"):
        run_small(method, *recipe)


# The guard.


def test_a_loss_above_three_times_the_mean_of_the_last_ones_is_left_out():
    guard = LossGuard({}, on=True)

    def kept(*values):
        return [guard.keeps("some", torch.tensor(value)) for value in values]

    assert kept(*[1.0] * 9, 100.0) == [True] * 10  # no tenth value before the tenth
    assert guard.windows["some"].mean() == 10.9
    assert kept(32.8) == [False] and len(guard.windows["some"]) == 10  # 3 x 10.9 = 32.7; it is not noted
    assert kept(32.6) == [True] and len(guard.windows["some"]) == 11
    assert kept(*[2.0] * 20) == [True] * 20 and guard.windows["some"].tolist() == [2.0] * 20
    assert kept(6.0, 6.7) == [True, False]  # mean then (19 x 2 + 6) / 20 = 2.2
    assert guard.keeps("another", torch.tensor(1000.0))
    below = LossGuard({"some": torch.full((10,), -1.0)}, on=True)
    assert below.keeps("some", torch.tensor(5.0))  # as released: only means above 0
    off = LossGuard(guard.windows, on=False)
    assert off.keeps("some", torch.tensor(1e6)) and len(off.windows["some"]) == 20


@pytest.mark.parametrize(
    ("label", "feature", "student", "expected"),
    [
        (0.09, 1.0, None, 0.0015),  # 0.2833 is above 3 x 0.09
        (0.10, 1.0, None, 0.2847734976),
        (1.0, 0.0004, None, 0.2832734976),  # 0.0015 is above 3 x 0.0004
        (0.09, 0.0004, None, 0.0),
        (0.09, 0.0004, T, 0.2775953282 - 0.2847734976),  # L_adv stays
    ],
)
def test_a_term_that_is_an_outlier_is_left_out_of_the_generators_loss(label, feature, student, expected):
    guard = LossGuard({"label": torch.full((10,), label), "feature": torch.full((10,), feature)}, on=True)
    assert loss([T, U], SHARES, student=student, guard=guard) == pytest.approx(expected, abs=1e-9)


def low(*names):
    """Windows in which any loss is an outlier."""
    return {name: torch.full((10,), 1e-12, dtype=torch.float64) for name in names}


def test_a_step_of_distillation_whose_loss_is_left_out_is_none(table):
    """Adam would move by its weight decay, and once begun by its moments."""
    first = table.method.init_server(table.server(0))
    after = table.method.absorb(first, late(table, first, [0, 5], 1), table.server(1))
    ctx = table.server(3)
    teachers = [ctx.frozen_model(one) for one in after.teachers]
    guard = LossGuard(low("distillation"), on=True)
    assert not table.method.distillation(after, teachers, guard, ctx).any()
    assert table.method.distillation(after, teachers, OFF, table.server(3)).any()


def test_a_step_of_synthesis_that_is_left_out_whole_trains_nothing(bench):
    table = bench({**METHOD, "loss_guard": True})
    first = table.method.init_server(table.server(0))
    known = replace(first, windows=low("label", "feature"))
    replies = late(table, first, [5], 1)
    guarded = table.method.absorb(known, replies, table.server(1))
    free = table.method.absorb(first, replies, table.server(1))
    assert torch.equal(guarded.generator, first.generator) and not torch.equal(
        free.generator, first.generator
    )
    # K_synth is 1: both keep the images of the first step, before it.
    assert torch.equal(guarded.images, free.images)
    # LeNet-5 has no statistics: its L_feat is 0, which is no outlier and is noted.
    assert {name: len(values) for name, values in guarded.windows.items()} == {"label": 10, "feature": 11}
    assert {name: len(values) for name, values in free.windows.items()} == {"label": 1, "feature": 1}


def test_a_guard_that_leaves_nothing_out_changes_nothing(bench):
    """As the windows of two rounds are short."""
    ends = []
    for guarded in (True, False):
        table = bench({**METHOD, "blend_after": 0, "loss_guard": guarded})
        server = table.method.init_server(table.server(0))
        for index in (1, 2, 3):
            server = table.method.absorb(server, late(table, server, [0, 5], index), table.server(index))
        ends.append(server)
    assert torch.equal(ends[0].weights, ends[1].weights)
    assert torch.equal(ends[0].generator, ends[1].generator)
    assert len(ends[0].windows["distillation"]) == 2 and not ends[1].windows  # none at update 0


@pytest.mark.parametrize(
    ("option", "value"), [("images", "public"), ("histograms", True), ("loss_guard", True)]
)
def test_killed_and_resumed_on_a_cluster_it_has_the_bits_of_the_local_run(option, value, monkeypatch):
    chosen = {**OPTIONS["fedrevive"], "blend_after": 0, "distill_steps": 2, option: value}
    monkeypatch.setitem(small_recipes.OPTIONS, "fedrevive", chosen)
    public = {"public": {"count": 30, "labels": False}} if option == "images" else {}
    monkeypatch.setitem(RECIPE, "partition", {**RECIPE["partition"], **public})
    case = Case("fedrevive:buffered")
    logged = [dict(row["logged"]) for rows in case.rows.values() for row in rows["rounds"]]
    assert any("distillation" in losses for losses in logged)
    assert any("synthesis" in losses for losses in logged) == (option != "images")
    for seed in range(4):
        run_disturbed(case, seed)
