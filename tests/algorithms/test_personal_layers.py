"""Stand-alone, FedPer, FedRep, their +, pFedSD and centralized training, against worked numbers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from contexts import client_context
from partitions import partition_of
from runs import Rounds, ended, states_of
from small_recipes import LAYERED
from torch import nn

import rayfed_kd
from rayfed_kd.algorithms.fedper import FedPer
from rayfed_kd.algorithms.fedrep import FedRep
from rayfed_kd.algorithms.fedrep import Options as RepOptions
from rayfed_kd.algorithms.pfedsd import Options as SelfOptions
from rayfed_kd.algorithms.pfedsd import PFedSD
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.data.dataset import Dataset, Split
from rayfed_kd.errors import RecipeError
from rayfed_kd.models.base import Classifier
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import DispatchFacts, Message, Replies
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.setting.setting import Setting
from rayfed_kd.timing.reading import read_timing
from rayfed_kd.toolbox import local_training as training
from rayfed_kd.toolbox.layers import Layers, mean_of_shared
from rayfed_kd.toolbox.own_models import PersonalOptions

SMALL = {**LAYERED, "method": {"name": "fedavg"}}


def simulated(method, *overrides, recipe=SMALL):
    return ended({**recipe, "method": method}, *overrides)


def assert_same_models(first, second):
    ours, theirs = states_of(first), states_of(second)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[client], theirs[client]) for client in ours)


def two_weights(method, epochs=1):
    """f(x) = h b x with loss (f - y)^2 / 2 at x = 1: client 0 has y = 2 once, client 1 y = 1 three times."""
    images, labels = np.ones((4, 1), dtype=np.float32), np.array([2, 1, 1, 1])
    train = Split(images, labels)
    dataset = Dataset(
        train, None, ("0", "1", "2"), mean=(0.0,), std=(1.0,), name="two", folder=Path(), whole=len(train)
    )
    partition = partition_of(
        train=(np.array([0]), np.array([1, 2, 3])), test=(np.zeros(0, np.int64), np.zeros(0, np.int64))
    )
    recipe = Recipe.model_validate(
        {
            "method": {"name": "fedper"},
            "partition": {"name": "iid", "clients": 2},
            "sampling": {"fraction": 1.0},
            "local": {"epochs": epochs, "batch_size": 4, "optimizer": {"name": "sgd", "lr": 0.1}},
        }
    )
    setting = Setting(recipe, method, read_timing(recipe), {}, dataset, partition)
    linear = lambda: Classifier(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False), 1)  # noqa: E731
    setting.architectures.builders = {"model": linear}
    return Simulation(setting, LocalEngine(Host(setting)), Rounds())


@pytest.fixture
def squared_loss(monkeypatch):
    def squared(logits, labels, given):
        return ((logits.squeeze(1) - labels) ** 2 / 2).mean()

    monkeypatch.setattr(training, "cross_entropy", squared)


@pytest.mark.parametrize(
    ("method", "epochs", "first", "second", "base"),
    [
        (FedPer(PersonalOptions(personal=["F2"])), 1, (1.075, 0.65), (0.8, 1.9), 0.86875),
        (FedRep(RepOptions(personal=["F2"], head_epochs=1)), 2, (1.08775, 0.65), (0.829, 1.9), 0.8936875),
    ],
    ids=["fedper", "fedrep"],
)
def test_a_round_of_two_clients_by_hand(method, epochs, first, second, base, squared_loss):
    """b = 1, eta 0.1. Client 1: h .5, y 2: gradients (bh - y) h = -.75 and (bh - y) b = -1.5, so FedPer gives
    b 1.075, h .65; FedRep steps h first, then b by (.65 - 2) .65 = -.8775. Client 2: h 2, y 1. n = (1, 3).
    """
    simulation = two_weights(method, epochs)
    setting = simulation.setting
    own, replies = [], []
    for client, head in ((0, 0.5), (1, 2.0)):
        ctx = client_context(setting, DispatchFacts(client, 1, 1))
        state = torch.tensor([9.0, head])  # its old base is not used
        model, reply = method.client_update(state, Message(base=torch.tensor([1.0])), ctx)
        reply.client = client
        own.append(model.tolist())
        replies.append(reply)
    assert own[0] == pytest.approx(first)
    assert own[1] == pytest.approx(second)
    server = method.absorb(torch.tensor([1.0, 7.0]), Replies(replies), simulation.setting.server_context(1))
    assert server.tolist() == pytest.approx([base, 7.0])


def test_fedreps_second_turn_goes_on_in_the_schedule_of_learning_rates():
    """The head's is the first epoch, phi's the second, whose learning rate is too small to move a float."""
    rates = "{epochs: {name: step, every: 1, factor: 1.0e-30}}"
    method = {"name": "fedrep", "personal": ["F2", "F3"], "head_epochs": 1}
    run = simulated(method, f"local.lr_schedule={rates}", "local.epochs=2", "rounds=1")
    before = run.setting.module_pool().initial_vector("model")
    torch.testing.assert_close(run.servers[-1], before, rtol=1e-6, atol=0)
    assert not any(torch.equal(model, before) for model in states_of(run).values())


@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedper", "personal": []},
        {"name": "fedper_plus", "z0": None},
        {"name": "fedrep", "personal": [], "head_epochs": 0},
        {"name": "fedrep", "personal": [], "head_epochs": 1},
        {"name": "fedrep_plus", "z0": None, "head_epochs": 2},
        {"name": "pfedsd", "lambda_kd": 0.0},
    ],
    ids=str,
)
def test_nothing_personal_is_fedavg_bit_for_bit(method):
    ours, fedavg = simulated(method), simulated({"name": "fedavg"})
    for server, theirs in zip(ours.servers, fedavg.servers, strict=True):
        weights = server if isinstance(server, torch.Tensor) else server.weights
        assert torch.equal(weights, theirs.weights)


@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedper", "personal": ["C1", "C2", "C3", "F1", "F2", "F3"]},
        {"name": "fedrep", "personal": ["C1", "C2", "C3", "F1", "F2", "F3"], "head_epochs": 2},
        {"name": "fedper_plus", "dropping": ["C1", "C2", "C3", "F1", "F2", "F3"], "at_once": True},
    ],
    ids=str,
)
def test_everything_personal_is_standalone_bit_for_bit(method):
    ours, alone = simulated(method), simulated({"name": "standalone"})
    assert_same_models(ours, alone)
    (note,) = rayfed_kd.prepare({**SMALL, "method": method}).setting.notes
    assert note.endswith("F3: nothing stays shared, as with the method standalone")
    assert [r.tables["clients"] for r in ours.recorder] == [r.tables["clients"] for r in alone.recorder]


@pytest.mark.parametrize("name", ["fedper", "fedrep"])
def test_dropped_from_the_start_the_plus_form_is_the_plain_one(name):
    heads = {"head_epochs": 1} if name == "fedrep" else {}
    plain = simulated({"name": name, "personal": ["F2", "F3"], **heads})
    plus = simulated({"name": f"{name}_plus", "dropping": ["F2", "F3"], "at_once": True, **heads})
    assert_same_models(plain, plus)
    for ours, theirs in zip(plus.servers, plain.servers, strict=True):
        assert torch.equal(ours.weights, theirs)


def trained(model, optimizer, setting, client, participation):
    ctx = client_context(setting, DispatchFacts(client, participation, participation))
    for images, labels in (*ctx.epoch(0), *ctx.epoch(1)):
        model.zero_gradients()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def test_standalone_is_the_plain_loop_on_a_clients_samples():
    """An independent loop: torch's SGD on the same batches, three rounds, momentum afresh in each."""
    simulation = simulated({"name": "standalone"}, "sampling.fraction=1.0")
    setting = simulation.setting
    for client, found in states_of(simulation).items():
        model = FlatModule(setting.builders["model"]())
        model.load(setting.module_pool().initial_vector("model"))
        for participation in (1, 2, 3):
            optimizer = torch.optim.SGD(model.module.parameters(), lr=0.1, momentum=0.5)
            trained(model, optimizer, setting, client, participation)
        assert torch.allclose(found, model.vector(), atol=1e-6)


def test_nothing_travels_in_standalone_and_centralized():
    for method, changes in (({"name": "standalone"}, []), ({"name": "centralized"}, ["partition.clients=1"])):
        simulation = simulated(method, *changes, "sampling={count: 1}", "partition.name=dirichlet")
        for record in simulation.recorder:
            row = record.tables["rounds"][0]
            assert (row["bytes_up"], row["bytes_down"]) == (0, 0)


def test_bytes_of_fedper_are_the_base_both_ways():
    """M1 at 1x8x8: C1 80, C2 1,168, C3 4,640 parameters: 5,888, 23,552 bytes a client."""
    simulation = simulated({"name": "fedper"})
    row = simulation.recorder[0].tables["rounds"][0]
    assert (row["bytes_up"], row["bytes_down"]) == (2 * 23_552, 2 * 23_552)


def test_bytes_of_fedper_plus_fall_as_layers_are_dropped():
    """M1 at 1x8x8, 3 classes: after C3 F1 has 32 (32 + 1), F2 16 (32 + 1), F3 3 (16 + 1); Z0 1."""
    method = {"name": "fedper_plus", "z0": 1}
    simulation = simulated(method, "rounds=5", "sampling={fraction: 1.0}", "local.epochs=1")
    bases = [7_523, 7_472, 6_944, 5_888, 5_888]
    assert [r.tables["rounds"][0]["bytes_up"] for r in simulation.recorder] == [4 * 4 * n for n in bases]
    assert [r.tables["rounds"][0]["bytes_down"] for r in simulation.recorder] == [4 * 4 * n for n in bases]


def test_a_layers_mean_is_over_those_who_sent_it():
    """n (10, 30, 60), values (1, 2, 4); the second client keeps layer 6: (10 + 240) / 70, and 3.1 below."""
    torch.manual_seed(0)
    body = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(5)])
    layers = Layers(FlatModule(Classifier(body, nn.Linear(1, 1, bias=False), 1)))
    before = torch.full((6,), 9.0)
    parts = [torch.full((6,), 1.0), torch.full((5,), 2.0), torch.full((6,), 4.0)]
    mean = mean_of_shared(layers, before, [6, 5, 6], parts, [10.0, 30.0, 60.0])
    assert mean.tolist() == pytest.approx([3.1] * 5 + [3.5714285714])
    mean = mean_of_shared(
        layers, before, [4, 3, 4], [p[:n] for p, n in zip(parts, (4, 3, 4), strict=True)], [10.0, 30.0, 60.0]
    )
    assert mean.tolist() == pytest.approx([3.1] * 3 + [3.5714285714, 9.0, 9.0])


def test_layer_that_turns_personal_goes_on_from_the_clients_own_value():
    """Z0 1, the last layer dropped: at Z 2 the head is what the client's own first round made of it."""
    method = {"name": "fedper_plus", "dropping": ["F3"], "z0": 1}
    changes = ("sampling={fraction: 1.0}", "local.epochs=1")
    one = states_of(simulated(method, "rounds=1", *changes))
    zero = states_of(simulated(method, "rounds=2", *changes, "local.optimizer={lr: 1.0e-30}"))
    two = simulated(method, "rounds=2", *changes)
    layers = Layers(FlatModule(two.setting.builders["model"]()))
    initial = two.setting.module_pool().initial_vector("model")
    for client, model in zero.items():  # steps too small to be seen: everything is as it came
        assert torch.allclose(model, initial)
        assert not torch.allclose(layers.rest(one[client], 5), layers.rest(initial, 5))
    method_ = two.setting.method
    state, ctx = one[0], client_context(two.setting, DispatchFacts(0, 2, 2))
    ctx.local = ctx.local.model_copy(update={"epochs": 0})
    base = layers.first(initial, 5)
    kept, _ = method_.client_update(state, Message(base=base, shared=5), ctx)
    assert torch.equal(layers.rest(kept, 5), layers.rest(state, 5))
    assert torch.equal(layers.first(kept, 5), base)


@pytest.mark.parametrize(("head_epochs", "moved"), [(2, "head"), (0, "base")])
def test_fedrep_moves_one_half_at_a_time(head_epochs, moved):
    """Adam with decay and momentum's SGD would move a half whose gradients are merely zeroed."""
    for optimizer in (
        "{name: adam, lr: 0.01, weight_decay: 0.01}",
        "{lr: 0.1, momentum: 0.5, weight_decay: 0.01}",
    ):
        method = {"name": "fedrep", "head_epochs": head_epochs}
        simulation = simulated(method, "rounds=1", f"local.optimizer={optimizer}")
        layers = Layers(FlatModule(simulation.setting.builders["model"]()))
        initial = simulation.setting.module_pool().initial_vector("model")
        for model in states_of(simulation).values():
            assert torch.equal(layers.first(model, 3), layers.first(initial, 3)) == (moved == "head")
            assert torch.equal(layers.rest(model, 3), layers.rest(initial, 3)) == (moved == "base")


def test_statistics_of_fedreps_representation_stay_while_the_head_learns():
    recipe = {**SMALL, "model": {"name": "bottleneck_resnet", "width": 2}}
    method = {"name": "fedrep", "personal": ["F1"], "head_epochs": 2}
    simulation = simulated(method, "rounds=1", recipe=recipe)
    layers = Layers(FlatModule(simulation.setting.builders["model"]()))
    initial = simulation.setting.module_pool().initial_vector("model")
    for model in states_of(simulation).values():
        assert torch.equal(layers.first(model, 4), layers.first(initial, 4))
        assert not torch.equal(model, initial)


def test_buffers_go_with_their_layer():
    """FedPer with BatchNorm: the server's statistics are the weighted mean of the clients'."""
    recipe = {**SMALL, "model": {"name": "bottleneck_resnet", "width": 2}}
    simulation = simulated({"name": "fedper", "personal": ["F1"]}, "rounds=1", recipe=recipe)
    module = FlatModule(simulation.setting.builders["model"]())
    models, sizes = states_of(simulation), simulation.setting.partition.sizes
    total = sum(sizes[client] for client in models)
    expected = sum(model.double() * int(sizes[client]) for client, model in models.items()) / total
    buffers = slice(module.num_parameters, None)
    assert torch.allclose(simulation.servers[0].double()[buffers], expected[buffers], atol=1e-6)


@pytest.mark.parametrize(
    ("weight", "tau", "expected"),
    [(1.0, 1.0, 0.9353803904), (0.5, 2.0, 0.8628836585), (0.0, 1.0, 0.6802696706)],
)
def test_pfedsds_loss_by_hand(weight, tau, expected):
    """CE((1, .5, 0), 0) = .6802696706; T^2 KL(t, u) = .2551107197 at 1, .3652279757 at 2, t = (2, 0, -1)."""
    student, teacher = (torch.tensor([logits]) for logits in ([1.0, 0.5, 0.0], [2.0, 0.0, -1.0]))
    models = {"student": lambda images: student, "teacher": lambda images: teacher}
    batch = {"images": torch.zeros(1, 1), "labels": torch.tensor([0])}
    loss = PFedSD(SelfOptions(lambda_kd=weight, tau=tau)).loss(models, batch, {})
    assert loss.value.item() == pytest.approx(expected)


def test_pfedsds_first_participation_is_fedavgs():
    """Nothing to distil from yet: the same bits as FedAvg's first round."""
    own, plain = simulated({"name": "pfedsd"}, "rounds=1"), simulated({"name": "fedavg"}, "rounds=1")
    assert torch.equal(own.models["global"], plain.models["global"])


def test_pfedsd_evaluates_the_clients_last_local_models():
    simulation = simulated({"name": "pfedsd"})
    assert set(simulation.models) == {"global", "personal"}
    for client, state in states_of(simulation).items():
        ctx = client_context(simulation.setting, DispatchFacts(client, 0, 0))
        assert torch.equal(simulation.setting.method.personal(state, ctx), state)
        assert not torch.equal(state, simulation.servers[-1])


def test_centralized_with_its_optimiser_reset_is_fedavg_of_one_client_bit_for_bit():
    changes = ("partition={name: iid, clients: 1}", "sampling={count: 1}")
    reset = simulated({"name": "centralized", "reset_optimizer": True}, *changes)
    fedavg, kept = simulated({"name": "fedavg"}, *changes), simulated({"name": "centralized"}, *changes)
    assert torch.equal(reset.servers[-1], fedavg.servers[-1].weights)
    assert torch.equal(kept.servers[0], reset.servers[0])
    assert not torch.equal(kept.servers[-1], reset.servers[-1])


def test_centralized_keeps_its_moments_between_rounds():
    """Three rounds are one run of torch's SGD with momentum over the same batches."""
    simulation = simulated(
        {"name": "centralized"}, "partition={name: iid, clients: 1}", "sampling={count: 1}"
    )
    setting, model = simulation.setting, FlatModule(simulation.setting.builders["model"]())
    model.load(simulation.setting.module_pool().initial_vector("model"))
    optimizer = torch.optim.SGD(model.module.parameters(), lr=0.1, momentum=0.5)
    for participation in (1, 2, 3):
        trained(model, optimizer, setting, 0, participation)
    assert torch.allclose(simulation.servers[-1], model.vector(), atol=1e-6)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"name": "fedper", "personal": ["F4"]}, "method.personal: the model has no layer F4; it has C1, C2"),
        ({"name": "fedrep", "personal": ["head"]}, "method.personal: the model has no layer head"),
        ({"name": "fedper_plus", "dropping": ["F4"]}, "method.dropping: the model has no layer F4"),
        ({"name": "fedrep", "head_epochs": 3}, "3 is more than local.epochs = 2; lower it, or raise local."),
        ({"name": "centralized"}, "partition.clients = 4: centralized trains on one, 1"),
    ],
    ids=str,
)
def test_bad_options_are_answered_before_the_first_round(method, message):
    with pytest.raises(RecipeError) as caught:
        rayfed_kd.prepare({**SMALL, "method": method})
    assert message in str(caught.value)


@pytest.mark.parametrize(("name", "key"), [("fedper", "personal"), ("fedrep_plus", "dropping")])
def test_a_default_that_leaves_nothing_shared_is_refused(name, key):
    dense = {**SMALL, "model": {"name": "dense"}, "method": {"name": name}, "local": {"epochs": 3}}
    with pytest.raises(RecipeError, match=rf"its default names .*F1, F2, F3, .* method.{key}=\[F3\]"):
        rayfed_kd.prepare(dense)
    assert rayfed_kd.prepare(dense, [f"method.{key}=[F3]"]).setting.notes == []


@pytest.mark.parametrize("name", ["fedper", "fedper_plus", "fedrep", "fedrep_plus", "fedd2s"])
def test_model_without_layers_is_refused(name, own_module):
    own_module(
        "layerless_model",
        "from torch import nn\nimport rayfed_kd\n\n\n@rayfed_kd.model_builder\ndef net(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n",
    )
    method = {"name": name, **({"head_epochs": 1} if "rep" in name else {})}
    with pytest.raises(
        RecipeError, match=r"model.name: a Sequential has no named layers.*torchvision:resnet18.*Classifier"
    ):
        rayfed_kd.prepare({**SMALL, "method": method, "model": {"name": "layerless_model:net"}})
