"""What a step's passes make of a last, short batch, by `local.last_batch`."""

import pytest
import torch
from contexts import client_context
from small_recipes import THREE_CLIENTS

from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import DispatchFacts
from rayfed_kd.toolbox.generation import pooled_labels
from rayfed_kd.toolbox.local_training import mean_loss, train_on_labels
from rayfed_kd.toolbox.losses import cross_entropy

# 20 samples are public; client 0 has 42 to train on.
PUBLIC = {"name": "iid", "clients": 3, "public": {"count": 20}}


def setting(last_batch, **local):
    local = {"epochs": 2, "batch_size": 20, "last_batch": last_batch, **local}
    return prepare({**THREE_CLIENTS, "partition": PUBLIC, "local": local}).setting


def context(last_batch, **local):
    return client_context(setting(last_batch, **local), DispatchFacts(0, 1, 1))


@pytest.mark.parametrize(
    ("last_batch", "sizes", "public"),
    [("keep", [20, 20, 2], [8, 8, 4]), ("drop", [20, 20], [8, 8]), ("join", [20, 22], [8, 12])],
)
def test_own_and_public_passes_go_by_the_recipe_and_what_is_drawn_is_what_is_trained(
    last_batch, sizes, public
):
    ctx = context(last_batch)
    assert ctx.num_samples == 42
    drawn = [*ctx.batches(0)]
    assert [len(one.indices) for one in drawn] == sizes
    assert torch.cat([one.numbers for one in drawn]).unique().numel() == sum(sizes)
    student = ctx.model(ctx.initial_vector())
    train_on_labels(student, ctx)
    assert ctx.samples_drawn == 2 * sum(sizes)
    assert [len(ids) for ids, _ in ctx.public.epoch(0, 8)] == public
    assert [len(ids) for ids, _ in ctx.public.in_order(batch_size=8)] == [8, 8, 4]
    assert [len(labels) for labels in pooled_labels(ctx)] == 2 * sizes
    server = setting(last_batch).server_context(1)
    assert [len(ids) for ids, _ in server.public.epoch(0, 8)] == public


def test_simulated_time_is_charged_for_the_samples_that_are_trained_on():
    """42 samples are two batches of 20 where the last is dropped: two epochs draw 80."""
    for last_batch, drawn in (("keep", 84), ("drop", 80), ("join", 84)):
        made = setting(last_batch)
        assert made.method.least_samples(42, made.recipe.local) == drawn


def test_steps_of_a_schedule_are_those_that_are_made():
    """Three batches an epoch are kept, two if the last is joined: 1 to 0 over 6 steps, or over 4."""
    rates = {"lr_schedule": {"steps": {"name": "cosine"}}}
    paces = {word: context(word, **rates).local.optimizer.pace for word in ("keep", "drop", "join")}
    assert {word: pace.steps_per_epoch for word, pace in paces.items()} == {"keep": 3, "drop": 2, "join": 2}
    assert paces["keep"].factor(3) == pytest.approx(0.5)
    assert paces["join"].factor(2) == pytest.approx(0.5)


def test_passes_that_do_not_train_see_all_samples():
    """Also where the last batch is dropped in training: a mean loss is that of all 42."""
    ctx = context("drop")
    model = ctx.frozen_model(ctx.initial_vector())
    images, labels = (torch.cat(column) for column in zip(*ctx.samples(), strict=True))
    assert len(labels) == 42
    with torch.no_grad():
        whole = cross_entropy(model(images), labels)
    assert mean_loss(model, ctx) == pytest.approx(float(whole), rel=1e-5)
