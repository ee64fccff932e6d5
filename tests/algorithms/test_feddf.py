"""FedDF against hand-worked numbers, the identity with FedAvg, its steps, its validation."""

import math

import numpy as np
import pytest
import torch
from contexts import assert_distillation_moves
from torch.nn import functional as F

from rayfed_kd.algorithms.feddf import Best, FedDF, Options, Validation
from rayfed_kd.data.batches import PublicBatch
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.models.vectors import weighted_mean
from rayfed_kd.toolbox.averaging import GlobalModel
from rayfed_kd.toolbox.losses import target_divergence

LENET5 = 21_386  # parameters for 8x8 digits
PUBLIC = "partition.public={count: 100, labels: false}"
LABELLED = "partition.public={count: 100}"
SGD = {"name": "sgd", "lr": 0.1}
PLAIN = {"name": "feddf", "optimizer": SGD, "schedule": "constant", "clip": None}
ONE_STEP = {**PLAIN, "steps": 1, "batch_size": 1000}

# Two teachers and a student on one sample.
TEACHERS = torch.tensor([[[3.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]], dtype=torch.float64)
STUDENT = torch.tensor([[1.0, 0.5, 0.0]], dtype=torch.float64)
LOGITS_GRADIENT = [-0.1220513282, 0.0759719881, 0.0460793401]
PROBABILITIES_GRADIENT = [-0.0542118870, -0.0035018070, 0.0577136940]


def graded(loss):
    """A loss of the student's logits, and its gradient."""
    student = STUDENT.clone().requires_grad_()
    value = loss(student)
    value.backward()
    return value.item(), student.grad[0].tolist()


@pytest.mark.parametrize(
    ("ensemble", "value", "gradient"),
    [("logits", 0.0301667461, LOGITS_GRADIENT), ("probabilities", 0.0128607525, PROBABILITIES_GRADIENT)],
)
def test_divergence_from_the_ensemble_by_hand(ensemble, value, gradient):
    mixed = FedDF(Options(ensemble=ensemble)).mixed(TEACHERS)
    found, slope = graded(lambda student: target_divergence(mixed, student))
    assert found == pytest.approx(value, abs=1e-9)
    assert slope == pytest.approx(gradient, abs=1e-9)


def test_averaged_losses_have_the_gradient_of_averaged_probabilities():
    """Why the released default is no option of its own: 0.2932676512, and the same slope."""

    def mean(student):
        each = [target_divergence(logits.softmax(1), student) for logits in TEACHERS]
        return torch.stack(each).mean()

    found, slope = graded(mean)
    assert found == pytest.approx(0.2932676512, abs=1e-9)
    assert slope == pytest.approx(PROBABILITIES_GRADIENT, abs=1e-9)


@pytest.mark.parametrize("ensemble", ["logits", "probabilities"])
def test_ensemble_of_one_teacher_is_distillation_with_t_squared(ensemble):
    """Logits (2, 0, -1) to (1, 0.5, 0) at T = 2: 0.3652279757."""
    mixed = FedDF(Options(ensemble=ensemble, temperature=2.0)).mixed(torch.tensor([[[2.0, 0.0, -1.0]]]))
    found = target_divergence(mixed, STUDENT.float(), 2.0).item()
    assert found == pytest.approx(0.3652279757, abs=1e-6)


@pytest.mark.parametrize("none", [{"epochs": 0}, {"steps": 0}])
def test_without_steps_it_is_fedavg_bit_for_bit(none, train):
    ours = train({"name": "feddf", **none}, PUBLIC)["global"]
    assert torch.equal(ours, train({"name": "fedavg"}, PUBLIC)["global"])


def test_without_steps_it_is_fedavg_under_a_schedule_without_rounds(run_small):
    words = [PUBLIC, "clock.name=lognormal", "schedule={name: fedbuff, buffer: 2}", "rounds=6"]
    ours = run_small({"name": "feddf", "steps": 0}, *words).models["global"]
    assert np.array_equal(ours, run_small({"name": "fedavg"}, *words).models["global"])


def test_late_replies_teach_under_a_schedule_without_rounds(run_small):
    words = [PUBLIC, "clock.name=lognormal", "schedule.name=fedasync", "rounds=6"]
    ours, plain = (run_small({"name": "feddf", "steps": steps}, *words) for steps in (3, 0))
    assert not np.array_equal(ours.models["global"], plain.models["global"])


@pytest.mark.parametrize("start", ["average", "last"])
def test_step_is_gradient_descent_on_the_divergence_by_hand(start, bench):
    """One batch of all public samples: w - 0.1 grad sum_c q_c (log q_c - log s_c), q of the mean logits."""
    table = bench({**ONE_STEP, "start": start}, PUBLIC, "local.epochs=10")
    _, replies = table.first_exchange(0, 1, 2)
    moved = GlobalModel(table.server().initial_vector() * 0.9)
    after = table.method.absorb(moved, replies, table.server())
    again = table.server()
    images = again.public.images(again.public.ids)
    logits = torch.stack([again.frozen_model(vector)(images) for vector in replies.vectors("student")])
    target = logits.mean(0).softmax(1)
    mean = weighted_mean(replies.vectors("student"), replies.numbers("samples"))
    begin = mean if start == "average" else moved.weights
    student = again.model(begin)
    (target * (target.log() - F.log_softmax(student(images), dim=1))).sum(1).mean().backward()
    expected = begin - 0.1 * student.gradients
    torch.testing.assert_close(after.weights, expected, rtol=1e-5, atol=1e-7)
    assert not torch.allclose(after.weights, begin, atol=1e-4)
    assert after.version == 1


def test_gradient_is_clipped_at_its_norm(bench):
    """A step of SGD at rate 1 with norm 0.005 is of length 0.005, in the same direction."""
    ends = []
    for clip in (None, 0.005):
        sgd = {"name": "sgd", "lr": 1.0}
        table = bench({**ONE_STEP, "optimizer": sgd, "clip": clip}, PUBLIC, "local.epochs=10")
        server, replies = table.first_exchange(0, 1, 2)
        mean = weighted_mean(replies.vectors("student"), replies.numbers("samples"))
        ends.append((table.method.absorb(server, replies, table.server()).weights - mean).double())
    assert ends[0].norm() > 0.01
    assert ends[1].norm().item() == pytest.approx(0.005, rel=1e-3)
    assert F.cosine_similarity(*ends, dim=0).item() == pytest.approx(1, abs=1e-3)


def test_learning_rate_falls_along_a_cosine():
    """Four steps: 1, (1 + cos 45) / 2, 1/2, (1 - cos 45) / 2."""
    factors = [Options().factor(step, 4) for step in range(4)]
    assert factors == pytest.approx([1, 0.8535533906, 0.5, 0.1464466094])
    assert [Options(schedule="constant").factor(step, 4) for step in range(4)] == [1] * 4


def test_second_step_of_two_has_half_the_rate_on_a_cosine(bench):
    """SGD: the cosine's two steps are those of 0.1, then 0.05, which one more constant step at 0.05 shows."""
    table = bench({**ONE_STEP, "steps": 2, "schedule": "cosine"}, PUBLIC)
    server, replies = table.first_exchange(0, 1, 2)
    found = table.method.absorb(server, replies, table.server()).weights
    ctx = table.server()
    images = ctx.public.images(ctx.public.ids)
    logits = torch.stack([ctx.frozen_model(vector)(images) for vector in replies.vectors("student")])
    student = ctx.model(weighted_mean(replies.vectors("student"), replies.numbers("samples")))
    for rate in (0.1, 0.05):
        student.zero_gradients()
        target_divergence(logits.mean(0).softmax(1), student(images)).backward()
        student.trainable -= rate * student.gradients
    torch.testing.assert_close(found, student.vector(), rtol=1e-5, atol=1e-7)


def test_teachers_that_agree_with_their_average_teach_nothing(bench, made_replies):
    """Equal models: the loss and its gradient are 0 up to rounding."""
    table = bench({**PLAIN, "epochs": 2}, PUBLIC)
    vector = table.server().initial_vector()
    replies = made_replies(*[({"student": vector.tolist()}, 10 + k) for k in range(3)])
    after = table.method.absorb(GlobalModel(vector), replies, ctx := table.server())
    torch.testing.assert_close(after.weights, vector, rtol=0, atol=1e-6)
    assert ctx.logged()["distillation"][0] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize(("amount", "steps"), [({"epochs": 3}, 12), ({"steps": 7}, 7)])
def test_steps_are_counted_in_batches_or_in_passes(amount, steps, bench):
    """100 samples in batches of 32: four a pass."""
    table = bench({"name": "feddf", "batch_size": 32, **amount}, PUBLIC)
    server, replies = table.first_exchange(0, 1, 2)
    ctx = table.server()
    table.method.absorb(server, replies, ctx)
    assert ctx.logged()["distillation"][1] == steps


def test_distillation_brings_the_average_to_what_its_clients_say_together(bench):
    table = bench({"name": "feddf", "epochs": 20, "batch_size": 32}, PUBLIC, "local.epochs=10")
    server, replies = table.first_exchange(0, 1, 2)
    after = table.method.absorb(server, replies, table.server()).weights
    mean = weighted_mean(replies.vectors("student"), replies.numbers("samples"))
    ctx = table.server()
    images = ctx.public.images(ctx.public.ids)
    logits = torch.stack([ctx.frozen_model(vector)(images) for vector in replies.vectors("student")])
    apart = [target_divergence(logits.mean(0).softmax(1), ctx.frozen_model(w)(images)) for w in (mean, after)]
    assert apart[1] < 0.5 * apart[0]


def test_the_public_samples_labels_are_not_looked_at(train):
    ours = [train({"name": "feddf", "epochs": 1}, words)["global"] for words in (PUBLIC, LABELLED)]
    assert torch.equal(*ours)


def test_clients_models_stay_as_they_came(bench):
    """Also BatchNorm's statistics: teachers are in eval mode; the student's own move."""
    table = bench({"name": "feddf", "epochs": 1}, PUBLIC, "model={name: bottleneck_resnet, width: 2}")
    server, replies = table.first_exchange(0, 1)
    before = [vector.clone() for vector in replies.vectors("student")]
    after = table.method.absorb(server, replies, table.server()).weights
    assert all(torch.equal(a, b) for a, b in zip(before, replies.vectors("student"), strict=True))
    mean = weighted_mean(before, replies.numbers("samples"))
    border = table.server().model(mean).num_parameters
    assert not torch.equal(after[border:], mean[border:])


def test_start_is_uniform_or_robust_if_the_recipe_says_so(bench):
    for options in ({"weighting": "uniform"}, {"aggregation": "median"}):
        tables = [bench({"name": name, **options, **more}, PUBLIC) for name, more in PAIR]
        ends = []
        for table in tables:
            server, replies = table.first_exchange(0, 1, 2)
            after = table.method.absorb(server, replies, table.server())
            ends.append(after.weights)
        assert torch.equal(*ends)


PAIR = (("feddf", {"steps": 0}), ("fedavg", {}))


class Made:
    """A server context whose public samples are given."""

    def __init__(self, ctx, samples):
        self._ctx, self._samples, self.public = ctx, samples, self
        self.ids, self.labelled = torch.arange(len(samples)), False

    def __len__(self):
        return len(self._samples)

    def in_order(self, ids):
        yield PublicBatch(ids, self._samples[ids])

    def epoch(self, index, batch_size, ids):
        for chosen in torch.split(ids, batch_size):
            yield PublicBatch(chosen, self._samples[chosen])

    def __getattr__(self, name):
        return getattr(self._ctx, name)


def test_dafkd_with_constant_discriminators_is_feddf_with_probabilities_on_its_samples(bench, monkeypatch):
    """What both distil from, on DaFKD's generated images."""
    from rayfed_kd.algorithms import feddf
    from rayfed_kd.algorithms.dafkd.mixtures import MixtureOptions

    generator = {"width": 4, "latent": 8}
    theirs = bench({"name": "dafkd", "generator": generator, "correlation": False, "distill_batches": 2})
    server, replies = theirs.first_exchange(0, 1, 2)
    told = []
    monkeypatch.setattr(MixtureOptions, "teach", lambda self, s, predict, x, q, ctx: told.append((x, q)))
    theirs.method.absorb(server, replies, theirs.server())
    samples, wanted = told[0]
    ours = FedDF(Options(ensemble="probabilities", steps=1, batch_size=len(samples)))
    found = []
    monkeypatch.setattr(
        feddf, "target_divergence", lambda q, z, t: found.append(q) or target_divergence(q, z, t)
    )
    ours.absorb(GlobalModel(server.weights), replies, Made(theirs.server(), samples))
    torch.testing.assert_close(found[0], wanted, rtol=0, atol=1e-6)


class Scripted:
    """A student that is right on so many held-out samples, from one look to the next."""

    def __init__(self, labels, rights):
        self.labels, self.rights, self.looks = labels, iter(rights), 0

    def predict(self, images):
        right = next(self.rights)
        self.looks += 1
        answers = torch.where(torch.arange(len(images)) < right, self.labels, (self.labels + 1) % 10)
        return F.one_hot(answers, 10).float()

    def vector(self):
        return torch.tensor([float(self.looks)])


def test_best_of_the_looks_is_taken_and_patience_ends(bench):
    """Looks after steps 2, 4, 6, 8: 3, 5, 5, 4 right. The best is the second; 4 steps on there was none."""
    table = bench({"name": "feddf"}, LABELLED)
    ctx = table.server()
    held = ctx.public.ids[:9]
    student = Scripted(ctx.public.labels(held), [3, 5, 5, 4])
    best = Best(Validation(every=2, patience=4), held)
    ended = [best.enough(step, 100, student, ctx) for step in range(1, 9)]
    assert ended == [False] * 7 + [True]
    assert best.model.item() == 2
    assert student.looks == 4


def test_last_step_is_looked_at_whatever_the_distance(bench):
    """Released, fewer steps than the distance of two looks leave no best model and fail."""
    table = bench({**PLAIN, "steps": 3, "validation": {}}, LABELLED)
    server, replies = table.first_exchange(0, 1, 2)
    plain = bench({**PLAIN, "steps": 3}, LABELLED)
    after = table.method.absorb(server, replies, table.server()).weights
    assert not torch.equal(after, weighted_mean(replies.vectors("student"), replies.numbers("samples")))
    assert not torch.equal(after, plain.method.absorb(server, replies, plain.server()).weights)


def test_held_out_samples_are_not_distilled_on(bench):
    """One in five of 100, by id; the others are."""
    table = bench({"name": "feddf", "validation": {"one_in": 5}}, LABELLED)
    learned, held = table.method._split(table.server())
    assert held.tolist() == list(range(0, 100, 5))
    assert sorted([*learned.tolist(), *held.tolist()]) == list(range(100))


def test_validation_keeps_a_better_model_than_the_last(bench, made_replies):
    """Teachers that know nothing: a trained student unlearns, so that an early look is the best."""
    unlearning = {**PLAIN, "start": "last", "optimizer": {"name": "sgd", "lr": 1.0}, "steps": 30}
    validation = {"every": 1, "patience": 100}
    table = bench({**unlearning, "validation": validation}, LABELLED, "local.epochs=20")
    trained = table.exchange(table.method.init_server(table.server()), [0])[0]["student"]
    server, replies = GlobalModel(trained), made_replies(({"student": [0.0] * LENET5}, 1))
    plain = bench(unlearning, LABELLED).method
    ctx = table.server()
    held = table.method._split(ctx)[1]
    ends = [method.absorb(server, replies, table.server()).weights for method in (table.method, plain)]
    right = [
        (ctx.frozen_model(w)(ctx.public.images(held)).argmax(1) == ctx.public.labels(held)).sum()
        for w in ends
    ]
    assert right[0] > right[1]


def test_bytes_of_a_round_are_two_models_a_client_and_no_prediction(run_small):
    result = run_small({"name": "feddf", "epochs": 1}, PUBLIC, "sampling.fraction=1.0")
    for row in result.tables["rounds"].to_pylist():
        assert (row["bytes_up"], row["bytes_down"]) == (5 * 4 * LENET5, 5 * 4 * LENET5)
    kinds = {row["kind"] for row in result.tables["messages"].to_pylist()}
    assert kinds == {"weights", "metadata"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("method={name: feddf, start: last, steps: 0}", "start: last without steps never learns"),
        ("method.validation={}", "labels = false: feddf needs the labels of public samples with these"),
        ("client_models={models: [{name: mlp}]}", "feddf combines its clients' weights"),
    ],
)
def test_wrong_options_are_answered(override, message, small):
    recipe = {**small, "method": {"name": "feddf"}}
    with pytest.raises(RecipeError) as caught:
        prepare(recipe, [PUBLIC, override])
    assert message in str(caught.value)


def test_holding_out_the_only_public_sample_is_refused(small):
    words = ["partition.public={count: 1}", "method.validation={}"]
    with pytest.raises(RecipeError, match="no public sample is left to distil on"):
        prepare({**small, "method": {"name": "feddf"}}, words)


def test_cosine_ends_above_zero_so_that_every_step_moves():
    assert all(Options().factor(step, 1000) > 0 for step in range(1000))
    assert math.isclose(Options().factor(0, 1), 1)


@pytest.mark.parametrize(("mode", "moved"), [("update", True), ("keep", False), ("eval", False)])
def test_running_statistics_follow_the_public_images_unless_they_are_kept(mode, moved, bench):
    net = "model={name: bottleneck_resnet, width: 2}"
    table = bench({**ONE_STEP, "batchnorm": mode}, "local.epochs=1", net, PUBLIC)
    assert_distillation_moves(table, statistics=moved)
