"""FedGH: the head's steps by hand, whose head is used where, what travels."""

import pytest
import torch
from runs import run_in_process
from torch import nn

from rayfed_kd.algorithms.fedgh import head_losses
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import OptimizerRecipe
from rayfed_kd.toolbox.by_class.means import mean_features
from rayfed_kd.toolbox.layers import head_place
from rayfed_kd.toolbox.local_training import train_on_labels
from rayfed_kd.toolbox.optimizers import Optimizer

CHANGES = ("model={name: mlp, hidden: 8}", "sampling.fraction=1.0", "local.epochs=1")


def test_two_steps_of_the_head_by_hand():
    """K_f 1, C 2, from zero at rate 0.1: (p 2, class 0), then (p -1, class 1)."""
    head = FlatModule(nn.Linear(1, 2))
    head.load(torch.zeros(4))
    optimizer = Optimizer(OptimizerRecipe(name="sgd", lr=0.1), head)
    after = []
    for loss in head_losses(head, torch.tensor([[2.0], [-1.0]]), torch.tensor([0, 1]), 1, 1):
        optimizer.minimise(loss)
        after.append(head.vector().tolist())
    assert after[0] == pytest.approx([0.1, -0.1, 0.05, -0.05], abs=1e-7)
    expected = [0.1475020812, -0.1475020812, 0.0024979188, -0.0024979188]
    assert after[1] == pytest.approx(expected, abs=1e-7)


def test_pairs_come_in_batches_epoch_after_epoch():
    head = FlatModule(nn.Linear(3, 2))
    assert len(list(head_losses(head, torch.ones(5, 3), torch.zeros(5, dtype=torch.int64), 3, 2))) == 9


def test_server_trains_its_head_on_the_pairs_that_came(bench):
    """A second way: torch's own layer and optimiser, one step a pair."""
    table = bench({"name": "fedgh"}, *CHANGES)
    server, replies = table.first_exchange(0, 2)
    layer = nn.Linear(8, 10)
    with torch.no_grad():
        layer.weight.copy_(server[:80].view(10, 8))
        layer.bias.copy_(server[80:])
    sgd = torch.optim.SGD(layer.parameters(), lr=0.05, momentum=0.5)
    for reply in replies:
        for prototype, label in zip(reply["prototypes"], reply["classes"], strict=True):
            sgd.zero_grad()
            nn.functional.cross_entropy(layer(prototype[None]), label[None].long()).backward()
            sgd.step()
    trained = table.method.absorb(server, replies, table.server())
    torch.testing.assert_close(trained[:80].view(10, 8), layer.weight.detach())
    torch.testing.assert_close(trained[80:], layer.bias.detach())


def test_client_trains_its_own_body_under_the_received_head(bench):
    """Also without a step of the server's: its head is then the common start of every round."""
    table = bench({"name": "fedgh", "server_epochs": 0}, *CHANGES)
    server = table.method.init_server(table.server())
    vector = table.server().initial_vector()
    assert torch.equal(server, vector[-90:])
    for index in (1, 2):
        replies = table.exchange(server, [1], index)
        ctx = table.client(1, index, index)
        student = ctx.model(torch.cat([vector[:-90], server]))
        train_on_labels(student, ctx)
        vector = student.vector()
        assert torch.equal(table.states[1], vector)
        expected = mean_features(ctx.frozen_model(vector), ctx)
        assert torch.equal(replies[0]["prototypes"], expected.values)
        assert torch.equal(replies[0]["classes"], expected.classes)
        assert torch.equal(table.method.absorb(server, replies, table.server(index)), server)


def test_bytes_are_the_formulas(small):
    recipe = {
        **small,
        "method": {"name": "fedgh"},
        "partition": {"name": "classes", "classes_per_client": 3, "clients": 5},
    }
    rows = run_in_process(recipe, *CHANGES, "rounds=1").rows["messages"]
    counted = {(row["client"], row["direction"], row["kind"]): row["bytes"] for row in rows}
    for client in range(5):
        assert counted[client, "down", "weights"] == 4 * 10 * 9
        assert counted[client, "up", "prototypes"] + counted[client, "up", "labels"] == 4 * 3 * 9


def test_both_heads_are_evaluated_on_the_clients_bodies(bench):
    table = bench({"name": "fedgh"}, *CHANGES)
    server = table.method.init_server(table.server())
    server = table.method.absorb(server, table.exchange(server, [0]), table.server())
    part = table.method.evaluated(server)["global_head"]
    ctx = table.client(0)
    layer = table.module_pool.lend("head", part.vector).freeze()
    images = next(iter(ctx.samples())).images
    whole = torch.cat([table.states[0][:-90], server])
    own = ctx.frozen_model(table.states[0])
    predict = table.method.composed([own, layer], torch.empty(0))
    assert torch.equal(predict(images), ctx.model(whole).predict(images))


def test_head_lies_before_the_buffers(bench):
    table = bench({"name": "fedgh"}, "model={name: bottleneck_resnet, width: 2}")
    flat = table.server().model(table.server().initial_vector())
    place = head_place(flat)
    assert flat.num_buffers > 0
    assert place.stop == flat.num_parameters
    torch.testing.assert_close(flat.vector()[place][-10:], flat.module.head.bias.detach())


def test_features_of_two_lengths_are_refused(small):
    models = "client_models={models: [{name: lenet5}, {name: mlp, hidden: 7}]}"
    with pytest.raises(RecipeError, match="features have lengths 7, 84"):
        prepare({**small, "method": {"name": "fedgh"}}, [models])


def test_model_that_ends_in_no_linear_layer_is_refused(small, own_module):
    own_module(
        "biasless_model",
        "from torch import nn\nimport rayfed_kd\n\n\n@rayfed_kd.model_builder\n"
        "def biasless(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes, bias=False))\n",
    )
    with pytest.raises(RecipeError, match=r"ends in no torch.nn.Linear with biases"):
        prepare({**small, "method": {"name": "fedgh"}}, ["model={name: 'biasless_model:biasless'}"])
