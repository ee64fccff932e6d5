"""FedKTL: the loss, who gets which gradient, what travels, how models predict."""

import copy
import math

import pytest
import torch
from runs import run_in_process
from torch.nn import functional as F

from rayfed_kd.algorithms.fedktl.fedktl import angular_logits, simplex
from rayfed_kd.toolbox.losses import cross_entropy

FEW = {"generator": {"width": 4, "latent": 6, "epochs": 1}, "server_epochs": 2}
PUBLIC = "partition.public={fraction: 0.3}"
CHANGES = ("model={name: mlp, hidden: 8}", "local.epochs=1", "evaluation.every=1", PUBLIC)


def table_with_pairs(bench, *changes, **options):
    """A bench after a first exchange, and its server's state, which has images."""
    table = bench({"name": "fedktl", **FEW, **options}, *CHANGES, "rounds=2", *changes)
    server = table.method.init_server(table.server(0))
    assert not table.method.dispatch(server, table.server(1)).parts
    return table, table.method.absorb(server, table.exchange(server, [0, 1, 2]), table.server(1))


@pytest.mark.parametrize(("margin", "scale"), [(0.5, 64.0), (0.2, 8.0)])
def test_loss_is_arcface_and_mu_times_the_distance_from_the_latents(margin, scale, bench):
    table, server = table_with_pairs(bench, mu=3.0, margin=margin, scale=scale)
    ctx = table.client(0)
    etf = simplex(10, 0)
    models = {
        "student": ctx.model(table.states[0]),
        "projector": ctx.model(ctx.initial_vector("projector"), "projector"),
    }
    images, labels = next(iter(ctx.samples()))
    batch = {"images": images, "labels": labels}
    hard = cross_entropy(angular_logits(models["student"](images), labels, etf, margin, scale), labels)
    assert torch.equal(table.method.loss(models, batch, {"etf": etf}).value, hard)
    batch |= {"x": server.pairs["images"], "w": server.pairs["latents"]}
    features = models["student"].features(batch["x"])
    expected = hard + 3.0 * F.mse_loss(models["projector"](features), batch["w"])
    found = table.method.loss(models, batch, {"etf": etf})
    torch.testing.assert_close(found.value, expected)
    assert set(found.logged) == {"arcface", "transfer"}


@pytest.mark.parametrize("clip", [100.0, 2.0, None])
def test_update_is_that_of_plain_torch_by_the_paper(clip, bench):
    """ArcFace by cos(t + m) = cos t cos m - sin t sin m, each network clipped by itself, then SGD."""
    table, server = table_with_pairs(bench, "local.batch_size=10", clip=clip)  # all pairs in each batch
    ctx, before = table.client(0, 2, 2), table.states[0]
    student = copy.deepcopy(ctx.model(before).module).train()
    projector = copy.deepcopy(ctx.model(ctx.initial_vector("projector"), "projector").module)
    recipe, etf = ctx.local.optimizer, simplex(10, 0)
    steps = [
        torch.optim.SGD(net.parameters(), lr=recipe.lr, momentum=recipe.momentum)
        for net in (student, projector)
    ]
    norms = []
    for drawn in ctx.batches(0):
        images, labels = ctx.read(drawn)
        cosines = F.normalize(student(images), dim=1) @ etf
        own = cosines.gather(1, labels[:, None])
        turned = own * math.cos(0.5) - (1 - own.square()).sqrt() * math.sin(0.5)
        logits = 64 * cosines.scatter(1, labels[:, None], turned)
        hard = (logits.logsumexp(1) - logits.gather(1, labels[:, None])[:, 0]).mean()
        features = student.body(server.pairs["images"])
        loss = hard + 50 * (projector(features) - server.pairs["latents"]).square().mean()
        for step in steps:
            step.zero_grad()
        loss.backward()
        for net, step in zip((student, projector), steps, strict=True):
            whole = torch.cat([p.grad.flatten() for p in net.parameters()]).norm()
            norms.append(float(whole))
            if clip is not None and whole > clip:
                for parameter in net.parameters():
                    parameter.grad *= clip / whole
            step.step()
    table.exchange(server, [0], 2)
    found = ctx.model(table.states[0]).module
    for after, expected in zip(found.parameters(), student.parameters(), strict=True):
        torch.testing.assert_close(after, expected, rtol=1e-3, atol=2e-5)
    assert not torch.equal(before, table.states[0])
    if clip == 2.0:
        assert max(norms) > clip  # so that it has been clipped


def test_without_weight_nothing_received_is_used(bench):
    """Bit for bit the model of a client that received nothing."""
    states = []
    for mu in (0.0, 5.0):
        table, server = table_with_pairs(bench, mu=mu)
        empty = table.method.init_server(table.server(0))
        before, states = dict(table.states), []
        for state in (server, empty):
            table.states = dict(before)
            table.participations[1] = 1
            table.exchange(state, [1], 2)
            states.append(table.states[1])
        assert torch.equal(*states) == (mu == 0)


def test_images_are_the_generators_of_the_latents_of_classes_that_came(bench):
    table, server = table_with_pairs(bench)
    ctx = table.server()
    present = sorted(
        {int(label) for client in (0, 1, 2) for _, y in table.client(client).samples() for label in y}
    )
    assert server.pairs["classes"].tolist() == present
    assert server.pairs["latents"].shape == (len(present), 6)
    generator = ctx.frozen_model(server.generator, "generator")
    expected = ctx.normalise(generator(server.pairs["latents"]))
    torch.testing.assert_close(server.pairs["images"], expected)
    again = table.method.absorb(server, table.exchange(server, [3], 2), table.server(2))
    assert torch.equal(again.generator, server.generator)  # trained once


def test_bytes_are_the_formulas(small):
    recipe = {
        **small,
        "method": {"name": "fedktl", **FEW},
        "partition": {"name": "classes", "classes_per_client": 3, "clients": 5, "public": {"fraction": 0.3}},
    }
    changes = (*CHANGES[:3], "rounds=2", "sampling.fraction=1.0")
    rows = run_in_process(recipe, *changes).rows["messages"]
    counted = {(row["round"], row["client"], row["direction"], row["kind"]): row["bytes"] for row in rows}
    for client in range(5):
        up = counted[1, client, "up", "prototypes"] + counted[1, client, "up", "labels"]
        assert up == 4 * 3 * (10 + 1)
        assert (1, client, "down", "images") not in counted
        down = counted[2, client, "down", "images"] + counted[2, client, "down", "features"]
        assert down == 4 * 10 * (1 * 8 * 8 + 6)


def test_models_predict_the_class_of_the_largest_cosine(bench):
    table, _ = table_with_pairs(bench)
    ctx = table.client(1)
    images = next(iter(ctx.samples())).images
    cosines = F.normalize(ctx.model(table.states[1]).predict(images), dim=1) @ simplex(10, 0)
    whole = table.method.personal(table.states[1], ctx)
    assert torch.equal(ctx.model(whole).predict(images).argmax(1), cosines.argmax(1))


def test_generators_error_stands_in_the_result_where_it_was_trained_there(small):
    recipe = {**small, "method": {"name": "fedktl", **FEW}}
    rows = run_in_process(recipe, *CHANGES, "rounds=2").rows["rounds"]
    assert ["generator_mse" in dict(row["logged"]) for row in rows] == [True, False]
