"""Clients trained together learn what they learn alone, up to rounding; the rest is left alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rayfed_kd.algorithms.fedavg import FedAvg
from rayfed_kd.cluster.engine.batching.batched_steps import steps_of_one_shape
from rayfed_kd.cluster.engine.batching.group_training import group_steps
from rayfed_kd.cluster.engine.calls import Held, StepCall, StepError
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.data.batches import Drawn
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import DispatchFacts, Reply, to_array
from rayfed_kd.toolbox.local_training import label_loss, train_batches, train_local_epochs
from rayfed_kd.toolbox.losses import cross_entropy
from rayfed_kd.toolbox.optimizers import Optimizer

CLIENTS = 5
CLOSE = 1e-5  # of weights that move by more than a thousand times as much


def setting(method=None, **recipe):
    torch.set_num_threads(1)
    asked = {
        "method": {"name": "fedavg"},
        "model": {"name": "mlp", "hidden": 16},
        "data": {"name": "digits", "fraction": 0.3},
        "partition": {"name": "dirichlet", "alpha": 0.5, "clients": CLIENTS},
        "local": {"epochs": 2, "batch_size": 16, "optimizer": {"lr": 0.1, "momentum": 0.5}},
        "rounds": 1,
        "sampling": {"fraction": 1.0},
    }
    own = method if isinstance(method, type) else None
    found = prepare({**asked, **recipe, **({"method": method} if method and not own else {})}).setting
    return found if own is None else replace(found, method=own())


def calls(one):
    """What goes down first, and the first round's steps."""
    ctx = one.server_context(1)
    message = one.method.dispatch(one.method.init_server(ctx), ctx)
    parts = {name: to_array(part).copy() for name, part in message.parts.items()}
    held = Held(parts)
    return parts, [
        StepCall("client_update", DispatchFacts(c, 1, 1), held, message.metadata, None, -1, c + 1)
        for c in range(CLIENTS)
    ]


def both(one):
    """What clients send and log, each alone and all together."""
    _, asked = calls(one)
    host = Host(one)
    alone = [host.step(call) for call in asked]
    together = group_steps(host, asked)
    return [(f, p) for f, p, _ in alone], [(f, p) for f, p, _ in together]


def assert_sent_the_same(one, part="student"):
    alone, together = both(one)
    for (_, parts), (_, sent) in zip(alone, together, strict=True):
        assert np.abs(sent[part] - parts[part]).max() < CLOSE
    return alone, together


def assert_learnt_the_same(one):
    initial, _ = calls(one)
    alone, together = assert_sent_the_same(one)
    for (facts, parts), (theirs, _) in zip(alone, together, strict=True):
        moved = np.abs(parts["student"] - initial["student"]).max()
        assert moved > 1000 * CLOSE
        assert theirs.samples == facts.samples
        assert theirs.metadata == facts.metadata
        assert theirs.logged.keys() == facts.logged.keys()
        for name, (value, count) in facts.logged.items():
            assert theirs.logged[name][1] == count
            assert theirs.logged[name][0] == pytest.approx(value, abs=1e-4)


def test_clients_of_unequal_sizes_with_small_last_batches():
    one = setting()
    assert len({size % 16 for size in one.partition.sizes.tolist()}) > 2
    assert_learnt_the_same(one)


def test_clients_of_equal_sizes():
    one = setting(partition={"name": "iid", "clients": CLIENTS})
    assert_learnt_the_same(one)


@pytest.mark.parametrize(
    "optimizer",
    [
        {"lr": 0.1},
        {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        {"name": "adam", "lr": 0.01, "weight_decay": 0.001},
        {"name": "adamw", "lr": 0.01, "betas": [0.8, 0.99]},
        {"name": "rmsprop", "lr": 0.01, "momentum": 0.5},
    ],
)
def test_every_optimiser_keeps_each_clients_moments_apart(optimizer):
    assert_learnt_the_same(setting(local={"epochs": 2, "batch_size": 16, "optimizer": optimizer}))


def test_every_client_has_its_own_pace_and_bound_on_gradients():
    """Epochs of different lengths, so rates fall at different steps; batches of one shape step together."""
    one = setting(
        local={
            "epochs": 3,
            "batch_size": 16,
            "optimizer": {"lr": 0.3, "momentum": 0.5},
            "lr_schedule": {
                "epochs": {"name": "step", "every": 1, "factor": 0.3},
                "steps": {"name": "cosine", "warmup": 2},
            },
            "clip": {"norm": 0.5},
        }
    )
    assert len({-(-size // 16) for size in one.partition.sizes.tolist()}) > 2
    assert_learnt_the_same(one)


def test_convolutions():
    assert_learnt_the_same(setting(model={"name": "lenet5"}))


def test_augmented_images_are_each_clients_own():
    one = setting(data={"name": "digits", "fraction": 0.3, "augment": "crop_flip"}, model={"name": "lenet5"})
    assert_learnt_the_same(one)


def test_group_normalisation_of_students_and_of_the_teacher_that_they_share():
    recipe = {"model": {"name": "resnet8", "width": 4}, "local": {"epochs": 1, "batch_size": 32}}
    one = setting({"name": "fedntd"}, **recipe)
    assert_sent_the_same(one)


@pytest.mark.parametrize("batch_size", [7, 32])
def test_batchnorms_statistics_are_each_clients_own(batch_size):
    """In batches of 7 client 3 alone has one sample left: 120 are 17 times 7, and one."""
    one = setting(model={"name": "smooth_net:smooth_net"}, local={"epochs": 1, "batch_size": batch_size})
    assert_sent_the_same(one)
    sizes = one.partition.sizes.tolist()
    assert [size % 7 for size in sizes].count(1) == 1
    assert len({-(-size // batch_size) for size in sizes}) > 1


def test_a_part_of_the_model_alone_is_trained_where_the_method_says_so():
    one = setting({"name": "fedrep", "head_epochs": 1}, model={"name": "lenet5"})
    assert_sent_the_same(one, "base")


def test_who_steps_together_has_batches_of_one_size_and_keeps_its_own_order():
    # Sizes 4 4 2 | 4 2 | 3: first the two of size 4, then what is commonest of the next ones.
    sizes = {0: (4, 4, 2), 1: (4, 2), 2: (3,)}
    batches = [
        iter([(Drawn(np.arange(n), np.full(n, 10 * lane + place), None), {}) for place, n in enumerate(own)])
        for lane, own in sizes.items()
    ]
    seen = [
        (places, [int(drawn.indices[0]) for drawn, _ in own]) for places, own in steps_of_one_shape(batches)
    ]
    assert seen == [([0, 1], [0, 10]), ([0], [1]), ([0, 1], [2, 11]), ([2], [20])]


class OwnLoss(FedAvg):
    """FedAvg with a loss that tests replace."""

    def extras(self, student, ctx):
        return {}

    def loss(self, models, batch, extras):
        return label_loss(models, batch, extras)

    def client_update(self, client, message, ctx):
        student = ctx.model(message["student"])
        train_batches({"student": student}, self.loss, ctx, extras=self.extras(student, ctx))
        return None, Reply(student=student.vector(), samples=ctx.num_samples)


class Noisy(OwnLoss):
    def loss(self, models, batch, extras):
        images = batch["images"]
        return label_loss(models, {**batch, "images": images + torch.rand(images.shape)}, extras)


class Peeking(OwnLoss):
    def loss(self, models, batch, extras):
        loss = label_loss(models, batch, extras)
        return loss if loss.value.item() > 1 else loss._replace(value=2 * loss.value)


class Averaging(OwnLoss):
    """Keeps a running mean of its images, in place."""

    def extras(self, student, ctx):
        return {"mean": torch.zeros(1, 8, 8)}

    def loss(self, models, batch, extras):
        mean = extras["mean"]
        mean.add_(0.1 * (batch["images"].mean(dim=0) - mean))
        return label_loss(models, {**batch, "images": batch["images"] - mean}, extras)


class Shrinking(OwnLoss):
    """Is given its own weights, which change at each step."""

    def extras(self, student, ctx):
        return {"weights": student.trainable}

    def loss(self, models, batch, extras):
        loss = label_loss(models, batch, extras)
        return loss._replace(value=loss.value / (1 + extras["weights"].square().sum()))


class Closure(OwnLoss):
    def client_update(self, client, message, ctx):
        student = ctx.model(message["student"])
        factor = 1 + ctx.client
        train_local_epochs(student, lambda x, y: factor * cross_entropy(student(x), y), ctx)
        return None, Reply(student=student.vector(), samples=ctx.num_samples)


class CapturingLoss(OwnLoss):
    """The form that batches, but with a captured variable."""

    def client_update(self, client, message, ctx):
        student = ctx.model(message["student"])
        factor = 1 + ctx.client

        def loss(models, batch, extras):
            found = label_loss(models, batch, extras)
            return found._replace(value=factor * found.value)

        train_batches({"student": student}, loss, ctx)
        return None, Reply(student=student.vector(), samples=ctx.num_samples)


class OwnLoop(FedAvg):
    def client_update(self, client, message, ctx):
        student = ctx.model(message["student"])
        optimizer = Optimizer(ctx.local.optimizer, student)
        for images, labels in ctx.epoch(0):
            optimizer.minimise(cross_entropy(student(images), labels))
        return None, Reply(student=student.vector(), samples=ctx.num_samples)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (Averaging, "changes a tensor that it is given, in place"),
        (Shrinking, "part of a model that it trains"),
        (CapturingLoss, "without captured variables"),
        (Peeking, "item"),
        (Noisy, "randomness"),
    ],
)
def test_a_loss_that_cannot_be_batched_is_an_error_that_names_the_cure(method, reason):
    one = setting(method=method)
    _, asked = calls(one)
    host = Host(one)
    told = r"clients 0, 1, 2, 3, 4, client_update \(local\.vectorise=off trains each by itself\)"
    with pytest.raises(StepError, match=rf"{told}(?s:.*){reason}"):
        group_steps(host, asked)
    for call in asked:
        host.step(call)


@pytest.mark.parametrize("method", [Closure, OwnLoop])
def test_what_is_not_in_the_form_that_batches_runs_by_itself_to_the_same_bits(method):
    alone, together = both(setting(method=method))
    for (facts, parts), (theirs, sent) in zip(alone, together, strict=True):
        assert np.array_equal(sent["student"], parts["student"])
        assert theirs.logged == facts.logged
        assert theirs.samples == facts.samples


class DrawnNoise(OwnLoss):
    """Noise that enters as part of the batch, from the client's own stream."""

    def client_update(self, client, message, ctx):
        student = ctx.model(message["student"])

        def further(drawn):
            stream = ctx.stream("noise")
            return {"noise": torch.rand(len(drawn.indices), *ctx.shape, generator=stream)}

        train_batches({"student": student}, self.loss, ctx, further=further)
        return None, Reply(student=student.vector(), samples=ctx.num_samples)

    def loss(self, models, batch, extras):
        return label_loss(models, {**batch, "images": batch["images"] + batch["noise"]}, extras)


def test_noise_of_a_batch_is_each_clients_own():
    assert_learnt_the_same(setting(method=DrawnNoise))


class Failing(FedAvg):
    def client_update(self, client, message, ctx):
        if ctx.client == 3:
            raise ValueError("seventeen")
        return super().client_update(client, message, ctx)


class FailingInTheLoss(OwnLoss):
    def extras(self, student, ctx):
        return {"fails": torch.zeros(2 if ctx.client == 3 else 1)}

    def loss(self, models, batch, extras):
        if len(extras["fails"]) == 2:
            raise ValueError("seventeen")
        return label_loss(models, batch, extras)


@pytest.mark.parametrize(
    ("method", "named"), [(Failing, "client 3, client_update failed:"), (FailingInTheLoss, "seventeen")]
)
def test_a_bug_names_its_client_and_the_host_goes_on(method, named):
    one = setting(method=method)
    _, asked = calls(one)
    host = Host(one)
    with pytest.raises(StepError, match=rf"{named}(?s:.*)seventeen"):
        group_steps(host, asked)
    expected = [host.step(call)[1] for call in asked[:3]]
    found = [parts for _, parts, _ in group_steps(host, asked[:3])]
    for sent, own in zip(found, expected, strict=True):
        assert np.abs(sent["student"] - own["student"]).max() < CLOSE


def test_what_is_given_is_each_clients_own():
    """Client 1's NaN is its own."""

    class Weighed(OwnLoss):
        def extras(self, student, ctx):
            return {"factor": torch.tensor(float("nan") if ctx.client == 1 else 1.0)}

        def loss(self, models, batch, extras):
            loss = label_loss(models, batch, extras)
            return loss._replace(value=extras["factor"] * loss.value)

    results = group_steps(Host(one := setting(method=Weighed)), calls(one)[1])
    assert [bool(facts.non_finite) for facts, _, _ in results] == [False, True, False, False, False]


def test_clients_who_are_given_other_shapes_are_other_programs():
    class Shaped(OwnLoss):
        def extras(self, student, ctx):
            return {"factor": torch.ones(2 if ctx.client == 1 else 1)}

        def loss(self, models, batch, extras):
            loss = label_loss(models, batch, extras)
            return loss._replace(value=extras["factor"].mean() * loss.value)

    alone, together = assert_sent_the_same(setting(method=Shaped))
    # Client 1 has nobody to train with, so it trains as it does alone.
    assert np.array_equal(together[1][1]["student"], alone[1][1]["student"])


def test_the_group_decides_the_bits_and_nothing_else():
    one = setting()
    _, asked = calls(one)
    first = [parts for _, parts, _ in group_steps(Host(one), asked)]
    busy = Host(one, host=7)
    group_steps(busy, asked[2:])
    again = [parts for _, parts, _ in group_steps(busy, asked)]
    assert all(np.array_equal(a["student"], b["student"]) for a, b in zip(first, again, strict=True))
