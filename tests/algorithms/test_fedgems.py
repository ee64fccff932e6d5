"""FedGEM and FedGEMS against hand-worked numbers, their identities, their bytes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from contexts import assert_statistics_moved, client_context
from runs import run_in_process, simulation_of, states_of
from small_recipes import MADE_UP, small_recipe
from torch.nn import functional as F

from rayfed_kd.algorithms.fedgems import FedGEMS, Fusion, Options
from rayfed_kd.cluster.server.cohort import EngineCohort
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import DispatchFacts, Message
from rayfed_kd.toolbox.losses import blended_loss
from rayfed_kd.toolbox.optimizers import Optimizer, StepRule
from rayfed_kd.toolbox.server_models.larger_server import (
    Plateau,
    ServerState,
    blended,
    entropy_weights,
    learn_public,
    paced,
)

SMALL = {
    **small_recipe(MADE_UP, "fedgems", server={"name": "mlp", "hidden": 16}, server_batch_size=16),
    "data": {**MADE_UP["data"], "samples": 90, "test_samples": 60},
    "rounds": 3,
}
PUBLIC, CLASSES, CLIENTS = 45, 3, 4
OFF = ["method.self_training=false", "method.self_distillation=false", "method.ensemble_distillation=false"]
T, U = [2.0, 0.0, -1.0], [1.0, 0.5, 0.0]


def run(*overrides, recipe=SMALL):
    return run_in_process(recipe, *overrides)


def simulation(*overrides, method=None):
    return simulation_of(SMALL, *overrides, method=method)


class Asked:
    """Clients that answer from a table, and remember what they were asked."""

    def __init__(self, answers):
        self.answers, self.ids = answers, []

    def ask(self, ids):
        self.ids.append(ids.tolist())
        return self.answers[:, ids]


def test_weights_among_clients_that_are_right():
    """H(.9, .1) = .3250829734, H(.6, .4) = .6730116670: softmax of 3.0761377, 1.4858583 is .8307, .1693."""
    logits = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]]).log()[:, None]
    entropies = [-sum(p * math.log(p) for p in row) for row in ([0.9, 0.1], [0.6, 0.4])]
    assert entropies == pytest.approx([0.3250829734, 0.6730116670], abs=1e-9)
    first = 1 / (1 + math.exp(1 / entropies[1] - 1 / entropies[0]))
    assert first == pytest.approx(0.83066, abs=1e-5)
    found = entropy_weights(logits, torch.tensor([0]))[:, 0].tolist()
    assert found == pytest.approx([first, 1 - first, 0], abs=1e-6)


def test_a_client_beyond_doubt_takes_all_the_weight_and_gives_no_nan():
    """Its entropy is 0 in float32, so 1 / H is cut at 1e8; two such share."""
    sure = torch.tensor([[200.0, 0.0], [1.0, 0.0], [200.0, 0.0]])[:, None]
    assert entropy_weights(sure, torch.tensor([0]))[:, 0].tolist() == [0.5, 0.0, 0.5]


def test_where_no_client_is_right_all_weights_are_zero():
    assert entropy_weights(torch.tensor([[[1.0, 0.0]], [[2.0, 0.0]]]), torch.tensor([1])).tolist() == [
        [0],
        [0],
    ]


@pytest.mark.parametrize(
    ("temperature", "divergence"), [(1, 0.2551107197), (2, 0.3652279757), (3, 0.3816498482)]
)
def test_blended_loss_of_the_worked_logits(temperature, divergence):
    """eps CE + (1 - eps) T^2 KL with CE(u, 0) = 0.6802696706; S1 is CE alone; the batch's mean of both."""
    logits, teacher = torch.tensor([U, U], dtype=torch.float64), torch.tensor([T, T], dtype=torch.float64)
    shares = (torch.tensor([0.75, 1.0]), torch.tensor([0.25, 0.0]))
    found = blended_loss(logits, torch.tensor([0, 0]), teacher, shares, temperature)
    entropy = 0.6802696706
    expected = (0.75 * entropy + 0.25 * divergence + entropy) / 2
    assert found.item() == pytest.approx(expected, abs=1e-9)


def fusion(known, **options):
    """Five samples of class 0, of which `known` are in the pool with logits of their id."""
    method = FedGEMS(Options(server={"name": "mlp"}, **options))
    run_ = simulation(method=method)
    ctx = run_.setting.server_context(1)
    server = method.init_server(ctx)
    server.pool[known], server.known[known] = torch.tensor(known, dtype=torch.float32)[:, None], True
    answers = torch.zeros(2, PUBLIC, CLASSES)
    answers[0, :, 0], answers[1, :, 1] = 3.0, 1.0  # one right and sure, one wrong
    answers[0, 4], answers[1, 4] = torch.tensor([0.0, 0.0, 5.0]), torch.tensor([0.0, 1.0, 0.0])  # none right
    asked = Asked(answers)
    return Fusion(method.options, server, asked, ctx), asked


LOGITS = torch.tensor([[9.0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 2, 0], [0, 3, 0]])


def test_every_sample_takes_its_branch():
    """0 is right; 1 and 2 are wrong but known; 3 and 4 are wrong and new, 4 to all clients as well."""
    work, asked = fusion([1, 2])
    lesson = work.teach(torch.arange(5), LOGITS, torch.zeros(5, dtype=torch.int64))
    assert asked.ids == [[3, 4]]
    assert lesson.hard.tolist() == [1, 0.75, 0.75, 0.75, 0.75]
    assert lesson.soft.tolist() == [0, 0.25, 0.25, 0.25, 0]
    assert lesson.teacher[1:4].tolist() == [[1, 1, 1], [2, 2, 2], [3, 0, 0]]
    assert list(work.counts.values()) == [1, 2, 2, 1]
    assert work.pool[0].tolist() == [9, 0, 0]
    assert work.known.nonzero().squeeze(1).tolist() == [0, 1, 2]


def test_a_sample_that_is_right_again_renews_its_pool_slot():
    work, _ = fusion([0, 1])
    work.teach(torch.arange(5), LOGITS, torch.zeros(5, dtype=torch.int64))
    assert work.pool[:2].tolist() == [[9, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize(
    ("off", "asked_about", "sample"),
    [
        ("self_training", [0, 3, 4], 0),
        ("self_distillation", [1, 2, 3, 4], 1),
        ("ensemble_distillation", [3, 4], 4),
    ],
)
def test_a_branch_that_is_off_learns_as_fedgem_does(off, asked_about, sample):
    """From the mean of all clients' logits, right or wrong, by eps."""
    work, asked = fusion([1, 2], **{off: False})
    lesson = work.teach(torch.arange(5), LOGITS, torch.zeros(5, dtype=torch.int64))
    assert asked.ids == [asked_about]
    assert (lesson.hard[sample].item(), lesson.soft[sample].item()) == (0.75, 0.25)
    mean = [0, 0.5, 2.5] if sample == 4 else [1.5, 0.5, 0]
    assert lesson.teacher[sample].tolist() == mean


def test_without_selection_fedgems_is_fedgem_bit_for_bit():
    selective = run(*OFF)
    plain = run("method={name: fedgem, server: {name: mlp, hidden: 16}, server_batch_size: 16}")
    assert np.array_equal(selective.models["server"], plain.models["server"])
    for name in ("metrics", "clients"):
        assert selective.tables[name].equals(plain.tables[name])
    up = [result.tables["rounds"]["bytes_up"].to_pylist() for result in (selective, plain)]
    assert up[0] == up[1] == [CLIENTS * PUBLIC * CLASSES * 4] * 3


def test_server_learns_from_uniform_clients_where_its_teacher_is_at_chance():
    ids, labels = torch.tensor([0, 1]), torch.tensor([0, 1])
    run_ = simulation("method.teacher=uniform", "method.self_training=false")
    asked = Asked(torch.tensor([[T] * PUBLIC, [U] * PUBLIC]))
    state = run_.setting.method.init_server(run_.setting.server_context(1))
    fusion = Fusion(run_.setting.method.options, state, asked, run_.setting.server_context(1))
    lesson = fusion.teach(ids, torch.tensor([U, U]), labels)
    assert lesson.teacher.tolist() == [[0.0] * CLASSES] * 2
    assert lesson.hard.tolist() == [0.75, 0.75]  # labels keep their weight


@pytest.mark.parametrize("name", ["fedgem", "fedgems"])
@pytest.mark.parametrize("control", ["method.epsilon=1.0", "method.teacher=none"])
def test_epsilon_one_trains_the_server_on_labels_alone_bit_for_bit(name, control):
    result = run(f"method.name={name}", control)
    run_ = simulation()
    first = run_.setting.server_context(1)
    model = first.model(first.initial_vector("server"), "server")
    optimizer = None
    for number in (1, 2, 3):
        ctx = run_.setting.server_context(number)
        options = Options(server={"name": "mlp"}).server_optimizer
        optimizer = Optimizer(options, model, None if optimizer is None else optimizer.state())
        for ids, images in ctx.public.epoch(0, 16):
            optimizer.minimise(
                F.cross_entropy(model(images), ctx.public.labels(ids), reduction="none").mean()
            )
    assert np.array_equal(result.models["server"], model.vector().numpy())
    assert result.tables["rounds"]["bytes_up"].to_pylist() == [0, 0, 0]  # no client is asked


@pytest.mark.parametrize("control", ["method.epsilon=1.0", "method.teacher=none", "method.teacher=uniform"])
def test_epsilon_one_trains_clients_on_labels_alone(control):
    """No server logits reach them, nor do those of a teacher at chance: other ones change nothing."""
    run_ = simulation(control)
    found = []
    for fill in (0.0, 5.0):
        run_.begin()
        cohort = EngineCohort(1, run_.run_state)
        message = Message(knowledge=torch.full((PUBLIC, CLASSES), fill), rate=1.0)
        cohort.broadcast(run_.setting.method.update, message)
        found.append([state.model for state in states_of(run_).values()])
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


def test_only_what_is_asked_for_is_counted(losses):
    """S3's samples: 12 bytes of logits up and 4 of ids down, a client each; L_s on all samples goes down."""
    result = run("rounds=4", "method.server_optimizer.lr=0.02", "data.signal=0.2")
    rows, logged = result.tables["rounds"].to_pylist(), losses(result)
    for row, counts in zip(rows, logged, strict=True):
        asked = counts["ensemble_distillation"]
        assert row["bytes_up"] == CLIENTS * asked * CLASSES * 4
        assert row["bytes_down"] == CLIENTS * (asked * 4 + PUBLIC * CLASSES * 4)
        assert sum(counts[name] for name in ("self_training", "self_distillation")) + asked == PUBLIC
    numbers = [counts["ensemble_distillation"] for counts in logged]
    assert numbers[0] > numbers[1] > numbers[2]


def test_a_round_of_fedgem_costs_what_is_published():
    """FedGEMS Table 4: 2 x 16 clients x 25,000 samples x 40 bytes = 31,250 KiB; 32 rounds are 976.56 MiB."""
    recipe = {
        "method": {"name": "fedgem", "server": {"name": "mlp", "hidden": 1}, "public_epochs": 0},
        "model": {"name": "mlp", "hidden": 1},
        "data": {"name": "synthetic", "samples": 30_000, "shape": [1], "classes": 10},
        "partition": {"name": "iid", "clients": 16, "public": {"count": 25_000}},
        "local": {"epochs": 1, "batch_size": 5000},
        "rounds": 1,
        "sampling": {"fraction": 1.0},
        "evaluation": {"samples": False},
    }
    row = run(recipe=recipe).tables["rounds"].to_pylist()[0]
    assert row["bytes_up"] == 15_625 * 1024
    assert (row["bytes_up"] + row["bytes_down"]) / 1024 == 31_250
    assert pytest.approx(976.56, abs=0.005) == 32 * 31_250 / 1024


def test_learning_rates_fall_after_the_patience():
    """Best .5 in round 1; rounds 2 and 3 are waited through, round 4 is one too many."""
    plateau = Plateau(factor=0.1, patience=2)
    empty = torch.zeros(0)
    server = ServerState(empty, {}, (), empty, empty)
    rates = []
    for accuracy in (0.5, 0.5, 0.4, 0.5, 0.6, 0.6, 0.6, 0.6):
        server = paced(server, accuracy, plateau)
        rates.append(server.rate)
    assert rates == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.1, 0.01])
    constant = paced(replace(server, waited=50), 0.1, None)
    assert constant.rate == server.rate


def test_rates_reach_both_optimisers():
    """A plateau from the first round on: nothing moves any more."""
    changes = ["method.plateau={factor: 1e-30, patience: 0}", "rounds=9", "method.server_optimizer.lr=1.0"]
    result = run(*changes)
    ua = [row["ua"] for row in result.tables["metrics"].to_pylist() if row["model"] == "personal"]
    servers = [row["server_loss"] for row in result.tables["metrics"].to_pylist() if row["model"] == "server"]
    assert ua[-1] == ua[-2]
    assert servers[-1] == servers[-2] != servers[0]


def test_clients_of_other_architectures_teach_a_larger_server():
    models = "client_models={models: [{name: mlp, hidden: 4}, {name: mlp, hidden: 8}]}"
    result = run(models, "rounds=8", "data.samples=600", "partition.test=official")
    found = result.summary["models"]
    assert found["server"]["last"]["server_accuracy"] > 0.7  # three classes: 1/3 by chance
    assert found["personal"]["last"]["ua"] > 0.7


def test_servers_default_model_is_resnet_56():
    architecture = FedGEMS().architectures()["server"]
    assert (architecture.name, architecture.options) == ("bottleneck_resnet", {"blocks": [6, 6, 6]})


NET = ["method.server={name: bottleneck_resnet, blocks: [1, 1, 1], width: 4}", "data.shape=[3, 8, 8]"]


def judged_logits(*changes):
    """The logits by which the first batch's branches were chosen, and the stored images' in both modes."""
    run_ = simulation(*NET, "method.server_batch_size=45", "method.epsilon=1.0", *changes)
    ctx, method = run_.setting.server_context(1), run_.setting.method
    server = method.init_server(ctx)
    judged = []

    def teach(ids, logits, labels):
        judged.append(torch.empty_like(logits).index_copy(0, ids, logits))
        return blended(logits, 1.0)

    learn_public(server, teach, method.options, ctx, getattr(method.options, "branch", "train"))
    images = ctx.public.images(ctx.public.ids)
    with torch.no_grad():
        modes = {
            "eval": ctx.frozen_model(server.model, "server")(images),
            "train": ctx.model(server.model, "server")(images),
        }
    return judged[0], modes


def test_augmentation_changes_what_is_trained_on_and_not_what_is_evaluated():
    """`train` sees the augmented batch, `eval` the stored one."""
    augmented = "method.public_augment=crop_flip"
    judged, modes = judged_logits("method.branch=eval", augmented)
    torch.testing.assert_close(judged, modes["eval"], rtol=1e-4, atol=1e-4)
    judged, modes = judged_logits("method.branch=train", augmented)
    assert not torch.allclose(judged, modes["train"], rtol=1e-2, atol=1e-2)


def test_clients_train_on_augmented_public_images(losses):
    plain, augmented = (run(f"method.public_augment={name}", "rounds=1") for name in ("none", "crop_flip"))
    assert losses(plain)[0]["kl"] != losses(augmented)[0]["kl"]


@pytest.mark.parametrize(("mode", "follows"), [("update", True), ("keep", False)])
def test_clients_statistics_follow_public_images_unless_they_are_kept(mode, follows):
    net = ["model={name: bottleneck_resnet, blocks: [1, 1, 1], width: 2}", "data.shape=[3, 8, 8]"]
    setting = prepare(SMALL, [*net, f"method.batchnorm={mode}"]).setting
    method, ctx = setting.method, client_context(setting, DispatchFacts(0, 1, 1))
    ctx.local = ctx.local.model_copy(update={"epochs": 0})
    client = method.init_client(ctx)
    knowledge = torch.zeros(PUBLIC, CLASSES)
    after, _ = method.update(client, Message(knowledge=knowledge, rate=1.0), ctx)
    assert_statistics_moved(ctx.frozen_model(client.model), after.model, client.model, follows)


def test_a_schedule_by_epochs_counts_passes_over_own_samples_alone(monkeypatch):
    """Public batches have the round's rate; then each own pass has a tenth of the rate before it."""
    schedule, factors = "local.lr_schedule={epochs: {name: exponential, factor: 0.1}}", []
    setting = prepare(SMALL, [schedule, "local.epochs=2", "method.public_epochs=3"]).setting
    monkeypatch.setattr(StepRule, "step", lambda *given: factors.append(given[-1]))
    method, ctx = setting.method, client_context(setting, DispatchFacts(0, 1, 1))
    message = Message(knowledge=torch.zeros(PUBLIC, CLASSES), rate=1.0)
    method.update(method.init_client(ctx), message, ctx)
    own, public = (math.ceil(n / ctx.local.batch_size) for n in (ctx.num_samples, PUBLIC))
    assert factors == pytest.approx([1.0] * 3 * public + [1.0] * own + [0.1] * own)


def test_augmentation_that_the_samples_cannot_take_is_refused():
    with pytest.raises(RecipeError, match=r"method\.public_augment"):
        prepare(SMALL, ["data.shape=[3]", "method.public_augment=crop_flip"])
