"""FedL2G: gradients by hand and by Jacobians, the server's step, Stand-Alone as its special case, traffic."""

import math

import numpy as np
import pytest
import torch
from runs import reply_of, run_in_process
from small_recipes import MADE_UP
from torch import nn
from torch.nn import functional as F

from rayfed_kd.algorithms.fedl2g import FedL2G, Options, guide_gradients
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import Message, Replies
from rayfed_kd.toolbox.optimizers import StepRule

NOW = {"name": "fedl2g", "warmup": 0}
DRAWN = {**NOW, "quiz": "drawn", "clip": None}


def linear(parameters, images):
    """z = W x of two classes and one input; the logits are guided."""
    logits = images @ parameters.view(1, 2)
    return logits, logits


def on(value, label):
    return torch.tensor([[value]], dtype=torch.float64), torch.tensor([label])


def test_gradient_by_hand():
    """W = 0, study x 1 of class 0, quiz x 2 of class 1, g_0 = (1, 0), eta 0.1."""
    guides = torch.tensor([[1.0, 0.0], [5.0, 5.0]], dtype=torch.float64)
    weights = torch.zeros(2, dtype=torch.float64)
    rows = guide_gradients(linear, weights, guides, [on(1.0, 0)], [on(2.0, 1)], step=0.1, weight=1.0)
    assert rows.tolist() == [pytest.approx([0.1197375320, -0.1197375320], abs=1e-10), [0.0, 0.0]]
    replies = Replies([reply_of(0, 1, gradients=rows[:1].tolist(), classes=[0])])
    after = FedL2G(Options(server_lr=0.1)).absorb(guides, replies, Logged())
    assert after.tolist() == [pytest.approx([0.9880262468, 0.0119737532], abs=1e-8), [5.0, 5.0]]


class Logged:
    """What the server's part reads of its context: where it logs."""

    def log(self, **values):
        self.values = values


class FunctionalHead(nn.Module):
    """Its output is no linear layer's: it has logits, and no features."""

    def __init__(self, shape, classes):
        super().__init__()
        self.inner, self.weight = nn.Linear(64, 12), nn.Parameter(torch.randn(classes, 12))

    def forward(self, images):
        return F.linear(torch.tanh(self.inner(images.flatten(1))), self.weight)


@pytest.mark.parametrize(
    ("guided", "model", "smoothing"),
    [
        *(("logits", "lenet5", 0.0), ("features", "lenet5", 0.0), ("logits", "lenet5", 0.3)),
        *(("logits", "zoo_modules:batchnorm2d", 0.0), ("logits", "zoo_modules:Transformer", 0.0)),
        ("logits", f"{__name__}:FunctionalHead", 0.0),
    ],
)
def test_gradients_are_sums_of_jacobians_along_the_quizs_slope(guided, model, smoothing, bench):
    """2 eta lambda / (B d M) sum_i J_i v of two study batches, J_i row by row."""
    words = ["local.batch_size=4", "local.optimizer.lr=0.3", f"model={{name: {model}}}"]
    words.append(f"local.label_smoothing={smoothing}")
    table = bench({**NOW, "guided": guided, "study_batches": 2, "weight": 0.7}, *words)
    ctx = table.client(0)
    own = ctx.own_initial_vector()
    message = table.method.dispatch(table.method.init_server(table.server()), table.server())
    reply = table.method._studied(ctx.frozen_model(own), own, message["guides"], ctx)
    quiz, study = table.method._parted(ctx, ctx.passes)
    batches = [ctx.read(one) for one in study[:2]]
    student = ctx.model(own).freeze()
    for parameter in student.parameters():
        parameter.requires_grad_()

    def slope(loss):
        student.zero_gradients()
        loss.backward()
        return student.gradients.clone()

    def out(images):
        return student(images) if guided == "logits" else student.features(images)

    studied = [
        F.cross_entropy(student(x), y, label_smoothing=smoothing)
        + 0.7 * ((out(x) - message["guides"][y]) ** 2).mean()
        for x, y in batches
    ]
    theta_slope = slope(sum(studied) / 2)
    moved = own.clone()
    moved[: len(theta_slope)] -= 0.3 * theta_slope  # behind it are buffers
    student.load(moved)
    ((images, labels),) = (ctx.read(one) for one in quiz)
    v = slope(F.cross_entropy(student(images), labels, label_smoothing=smoothing))
    student.load(own)
    wanted = torch.zeros_like(message["guides"])
    for x, y in batches:
        values = out(x)
        for row, label in enumerate(y):
            for place in range(values.shape[1]):
                student.zero_gradients()
                values[row, place].backward(retain_graph=True)
                wanted[label, place] += 2 * 0.3 * 0.7 / (2 * values.numel()) * (student.gradients @ v)
    classes = sorted({int(label) for _, y in batches for label in y})
    assert reply["classes"].tolist() == classes and len(classes) > 1
    assert wanted.abs().max() > 1e-5
    torch.testing.assert_close(reply["gradients"], wanted[classes], rtol=1e-3, atol=1e-7)


def test_server_averages_each_class_over_its_senders_and_clips():
    guides = torch.zeros(3, 2)
    rows = [([[2.0, 0.0], [0.0, 8.0]], [0, 2]), ([[4.0, 0.0]], [0])]
    replies = Replies([reply_of(k, 1, gradients=g, classes=c) for k, (g, c) in enumerate(rows)])
    plain = FedL2G(Options(server_lr=0.5, clip=None)).absorb(guides, replies, Logged())
    assert plain.tolist() == [[-1.5, 0.0], [0.0, 0.0], [0.0, -4.0]]
    norm = (3.0**2 + 8.0**2) ** 0.5
    clipped = FedL2G(Options(server_lr=0.5, clip=1.0)).absorb(guides, replies, Logged())
    torch.testing.assert_close(clipped, plain / norm)


def test_without_weight_and_with_drawn_quizzes_it_is_standalone_bit_for_bit(client_states, small):
    ours, alone = (
        client_states({**small, "method": one}) for one in ({**DRAWN, "weight": 0.0}, {"name": "standalone"})
    )
    assert len(ours) == len(alone)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(ours, alone, strict=True))


def test_without_weight_gradients_are_zero(bench):
    table = bench({**NOW, "weight": 0.0})
    server = table.method.init_server(table.server())
    replies = table.exchange(server, [0, 1])
    assert all(not gradients.any() for gradients in replies.vectors("gradients"))
    assert torch.equal(table.method.absorb(server, replies, table.server()), server)


def test_held_out_samples_are_never_trained_on(bench):
    """Batches of training hold the others, each once a pass, in batches of one length but the last."""
    table = bench({**NOW, "quiz_batches": 1}, "local.epochs=2", "local.batch_size=16")
    ctx = table.client(1)
    held = table.method.options.held(ctx.num_samples, ctx.local)
    assert held == 16 < ctx.num_samples / 2
    drawn = list(table.method._batches(ctx))
    numbers = torch.cat([one.numbers for one in drawn]).tolist()
    assert sorted(numbers) == sorted([*range(held, ctx.num_samples)] * 2)
    quiz, study = table.method._parted(ctx, ctx.passes)
    assert torch.cat([one.numbers for one in quiz]).sort().values.tolist() == [*range(held)]
    own = table.setting.partition.train[1]
    assert all(np.array_equal(own[one.numbers], one.indices) for one in [*drawn, *quiz, *study])


def test_a_cosine_falls_over_the_steps_without_the_quiz(bench, monkeypatch):
    words = ["local.epochs=2", "local.batch_size=16", "local.lr_schedule={steps: {name: cosine}}"]
    table, factors = bench({**NOW, "quiz_batches": 1}, *words), []
    ctx = table.client(1)
    monkeypatch.setattr(StepRule, "step", lambda *_: factors.append(_[-1]))
    table.method.client_update(ctx.own_initial_vector(), Message(guides=torch.zeros(10, 10)), ctx)
    steps = 2 * math.ceil((ctx.num_samples - 16) / 16)
    assert factors == pytest.approx([(1 + math.cos(math.pi * n / steps)) / 2 for n in range(steps)])


def test_batches_of_one_are_of_the_samples_without_a_quiz_that_is_held_out():
    """Of twelve six are the quiz, and the others one batch of eleven at most; drawn, all are 11 and 1."""
    model, partition = {"name": "zoo_modules:BatchNorm1d"}, {"name": "iid", "clients": 4}
    recipe = {**MADE_UP, "method": NOW, "model": model, "partition": partition}
    prepare(recipe, ["local.batch_size=11"])
    with pytest.raises(
        RecipeError, match=r"client 0 has 12 samples to train on, and .* leaves a batch of one"
    ):
        prepare({**recipe, "method": DRAWN}, ["local.batch_size=11"])


def test_a_quiz_is_at_most_half_of_a_clients_samples(bench):
    options = Options(quiz_batches=3)
    local = bench(NOW).client(0).local
    assert [options.held(samples, local) for samples in (0, 1, 5, 200, 1000)] == [0, 0, 2, 96, 96]


def test_models_train_only_after_the_warm_up(run_small, small):
    initial = prepare({**small, "method": NOW}).setting.module_pool().initial_vector("model")
    recipe = {**small, "method": {"name": "fedl2g", "warmup": 2}, "sampling": {"fraction": 1.0}}
    rows = run_in_process(recipe).tables["rounds"].to_pylist()
    assert [("ce" in dict(row["logged"])) for row in rows] == [False, False, True]
    assert all("guide_gradient" in dict(row["logged"]) for row in rows)
    assert len(initial)
    with pytest.raises(RecipeError, match=r"method\.warmup = 50: no model trains"):
        prepare({**small, "method": {"name": "fedl2g"}})


def test_what_travels(run_small):
    """Ten vectors of length ten down; up one row of length ten, and its class, for each class studied."""
    table = run_small(NOW).tables["messages"].to_pylist()
    down = [row["bytes"] for row in table if row["direction"] == "down" and row["kind"] == "prototypes"]
    assert down == [400] * 9
    up = {}
    for row in table:
        if row["direction"] == "up" and row["kind"] in ("prototypes", "labels"):
            up.setdefault((row["round"], row["client"]), []).append(row["bytes"])
    assert len(up) == 9
    assert all(sum(both) % 44 == 0 and max(both) == 10 * min(both) for both in up.values())
