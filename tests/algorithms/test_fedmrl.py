"""FedMRL: loss and prediction by hand, who gets gradient, the first step of training alone, what travels."""

import pytest
import torch
from runs import run_in_process
from small_recipes import MADE_UP
from torch.nn import functional as F

from rayfed_kd.algorithms.fedmrl import SMALL, FedMRL, Options, joined
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import Message

GIVEN = {}


class Fixed:
    """A model whose features are given, and whose head is a matrix."""

    def __init__(self, features, head):
        self.found, self.head = torch.tensor([features]), torch.tensor(head)

    def features(self, images):
        return self.found

    def classify(self, features):
        return features @ self.head.T


# r_g (1), r_k (2, 0); rows of the projector (1, 0, 0), (0, 1, 1) without biases: r = (1, 2).
PARTS = {"small": Fixed([1.0], [[1.0], [-1.0]]), "own": Fixed([2.0, 0.0], [[1.0, 0.0], [0.0, 1.0]])}
PROJECTOR = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]])
BATCH = {"images": torch.zeros(1), "labels": torch.tensor([0])}


@pytest.mark.parametrize(("weight", "total"), [(1.0, 1.4401896986), (0.5, 1.3767256931), (0.0, 1.3132616875)])
def test_loss_by_hand(weight, total):
    models = {**PARTS, "projector": lambda inputs: inputs @ PROJECTOR.T}
    loss = FedMRL(Options(small_weight=weight)).loss(models, BATCH, GIVEN)
    assert loss.value.item() == pytest.approx(total, abs=1e-6)
    assert loss.logged["ce"].item() == pytest.approx(1.3132616875, abs=1e-6)
    assert ("small_ce" in loss.logged) == (weight > 0)


@pytest.mark.parametrize(("biases", "logits"), [([0.0, 0.0], [1.0, 2.0]), ([0.5, -1.0], [1.5, 1.0])])
def test_prediction_by_hand(biases, logits):
    numbers = torch.cat([PROJECTOR[:, :3], torch.tensor(biases)[:, None]], 1).flatten()
    predict = FedMRL().composed([PARTS["own"], PARTS["small"]], numbers)
    assert predict(torch.zeros(1)).tolist() == [logits]


def several(**options):
    models = {"models": [{"name": "mlp", "hidden": 8}, {"name": "mlp", "hidden": 12}]}
    return {**MADE_UP, "client_models": models, "method": {"name": "fedmrl", **options}}


LENGTHS = {hidden: 65 * hidden + 3 * (hidden + 1) for hidden in (8, 12)}  # 64 pixels, 3 classes


def test_every_part_takes_gradient_and_the_small_models_head_from_its_own_loss_alone(bench):
    table = bench({"name": "fedmrl", "small_weight": 0.0})
    ctx = table.client(0)
    state = table.method.init_client(ctx)
    after, reply = table.method.client_update(state, Message(small=state.small), ctx)
    assert all(not torch.equal(getattr(after, name), getattr(state, name)) for name in ("own", "projector"))
    head = 10 * 85  # of lenet5, behind 84 features: the last parameters
    assert torch.equal(reply["small"][-head:], state.small[-head:])
    assert not torch.equal(reply["small"][:-head], state.small[:-head])
    whole = bench({"name": "fedmrl"})
    again, _ = whole.method.client_update(state, Message(small=state.small), whole.client(0))
    assert not torch.equal(again.small[-head:], state.small[-head:])


def test_first_step_with_the_own_features_alone_is_that_of_training_alone(bench):
    """W = (0 | I), b = 0 and m = 0: one step moves the own model as cross entropy does."""
    changes = ("local.epochs=1", "local.steps=1", "local.epochs=null")
    table = bench({"name": "fedmrl", "small_weight": 0.0}, *changes[1:])
    ctx = table.client(0)
    state = table.method.init_client(ctx)
    fixed = torch.cat([torch.zeros(84, 84), torch.eye(84), torch.zeros(84, 1)], 1)
    state = type(state)(state.own, state.small, fixed)
    after, reply = table.method.client_update(state, Message(small=state.small), ctx)
    alone = bench({"name": "standalone"}, *changes[1:])
    ours, _ = alone.method.client_update(state.own, Message(), alone.client(0))
    torch.testing.assert_close(after.own, ours, rtol=0, atol=1e-6)
    assert not torch.allclose(ours, state.own, atol=1e-4)
    assert torch.equal(reply["small"], state.small)  # W takes nothing from it


def test_small_models_travel_both_ways_whatever_the_clients_own_are():
    rows = run_in_process(several()).rows["messages"]
    weights = [row for row in rows if row["kind"] == "weights"]
    assert {row["bytes"] for row in weights} == {4 * LENGTHS[8]}
    assert len(weights) == 2 * 2 * 4  # both ways, two rounds, four clients


@pytest.mark.parametrize(("weighting", "weights"), [("samples", [3, 1]), ("uniform", [1, 1])])
def test_server_averages_small_models(bench, made_replies, weighting, weights):
    table = bench({"name": "fedmrl", "weighting": weighting})
    server = torch.zeros(2)
    replies = made_replies(({"small": [1.0, 0.0]}, 3), ({"small": [0.0, 4.0]}, 1))
    mean = table.method.absorb(server, replies, table.server())
    expected = (weights[0] * torch.tensor([1.0, 0.0]) + weights[1] * torch.tensor([0.0, 4.0])) / sum(weights)
    torch.testing.assert_close(mean, expected)


def test_clients_are_evaluated_with_all_parts_as_their_training_left_them(client_states):
    recipe = several()
    rows = [row for row in run_in_process(recipe).rows["clients"] if row["round"] == 2]
    setting, states = prepare(recipe).setting, client_states(recipe)
    pool, data = setting.module_pool(), setting.device_data()
    assert rows
    for row in rows:
        state, name = states[row["client"]], setting.models_by_client[row["client"]]
        own, small = pool.lend(name, state.own).freeze(), pool.lend(SMALL, state.small).freeze()
        images, labels = data.gather(torch.from_numpy(setting.partition.test[row["client"]]), "train")
        images = data.normalise(images)
        both = torch.cat([small.features(images), own.features(images)], 1)
        weights, biases = state.projector[:, :-1], state.projector[:, -1]
        logits = own.classify(F.linear(both, weights, biases))
        assert row["correct"] == int((logits.argmax(1) == labels).sum())


def test_features_are_joined_small_ones_first_then_a_one():
    assert joined(torch.tensor([[1.0]]), torch.tensor([[2.0, 0.0]])).tolist() == [[1.0, 2.0, 0.0, 1.0]]


def test_own_models_with_fewer_features_than_the_small_one_are_refused():
    fewer = {**several(), "client_models": {"models": [{"name": "mlp", "hidden": 4}]}}
    with pytest.raises(
        RecipeError, match="a client's model has 4 features; expected at least the 8 of `model`"
    ):
        prepare(fewer)
