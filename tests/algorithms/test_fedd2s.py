"""FedD2S: a whole round against plain torch, the ledger, who gets gradient, identities."""

import copy

import pytest
import torch
from contexts import client_context
from runs import batches_counted, ended, simulation_of, states_of
from small_recipes import LAYERED
from torch import nn
from torch.nn import functional as F

import rayfed_kd
from rayfed_kd.algorithms.fedd2s import FedD2S, Options
from rayfed_kd.algorithms.standalone import StandAlone
from rayfed_kd.errors import RecipeError
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import DispatchFacts, Message
from rayfed_kd.toolbox.layers import Layers

SMALL = {
    **LAYERED,
    "method": {"name": "fedd2s", "z0": 1},
    "partition": {"name": "dirichlet_client", "alpha": 1.0, "clients": 4},
    "local": {"epochs": 4, "batch_size": 16, "optimizer": {"name": "adam", "lr": 0.01}},
    "rounds": 1,
}
# M1's stages: three of convolution, ReLU and pooling; flatten and three full layers.
ENDS = (0, 3, 6, 10, 12, 14, 15)


def simulation(*overrides):
    return simulation_of(SMALL, *overrides)


class Plain:
    """FedD2S written a second time, on nn.Sequential and torch's optimisers, from Algorithm 1.

    `zero_grad` leaves no gradient at all where J does not reach, and torch's optimisers pass over that.
    """

    def __init__(
        self, simulated, *, mechanism="head", tau=1.0, direction="teacher_student", lowest=3, at_once=False
    ):
        self.simulated = simulated
        self.mechanism, self.tau, self.direction = mechanism, tau, direction
        self.lowest, self.at_once = lowest, at_once
        module_pool = simulated.setting.module_pool()
        flat = FlatModule(simulated.setting.builders["model"]())
        flat.load(module_pool.initial_vector("model"))
        self.stages = nn.Sequential(*copy.deepcopy(flat.module.stages))
        self.server = copy.deepcopy(self.stages)
        self.clients = {k: copy.deepcopy(self.stages) for k in range(4)}
        self.seen = dict.fromkeys(range(4), 0)

    def part(self, model, first, last):
        return model[ENDS[first] : ENDS[last]]

    def optimiser(self, modules):
        return torch.optim.SGD(modules.parameters(), lr=0.1, momentum=0.5)

    def difference(self, teacher, student):
        if self.mechanism == "mse":
            return ((student - teacher) ** 2).mean()
        p, q = (F.softmax(logits / self.tau, dim=1) for logits in (teacher, student))
        if self.direction == "student_teacher":
            p, q = q, p
        return self.tau**2 * (p * (p.log() - q.log())).sum(1).mean()

    def round(self, number, cohort):
        told, copies = {}, []
        before = copy.deepcopy(self.server)
        for k in cohort:
            self.seen[k] += 1
            layer = self.lowest if self.at_once else max(self.lowest, 7 - self.seen[k])
            ctx = client_context(self.simulated.setting, DispatchFacts(k, number, self.seen[k]))
            images, labels = map(torch.cat, zip(*ctx.samples(), strict=True))
            with torch.no_grad():
                first = self.part(self.clients[k], 0, 1)(images)
                deep = self.part(self.clients[k], 0, layer)(images)
            told[k] = (layer, first)
            copies.append(self.taught(k, number, before, (layer, first, deep, labels)))
        with torch.no_grad():
            for merged, *parts in zip(
                self.server.parameters(), *(c.parameters() for c in copies), strict=True
            ):
                merged.copy_(torch.stack(parts).double().mean(0))
        for k in cohort:
            self.learn(k, number, *told[k])

    def taught(self, k, number, before, knowledge):
        layer, first, deep, labels = knowledge
        model = copy.deepcopy(before)
        upper = self.part(model, 1, 6)
        optimiser = self.optimiser(upper)
        stream = self.simulated.setting.server_context(number).stream(f"order of client {k}")
        to = layer if self.mechanism == "mse" else 6
        for _ in range(2):
            for chosen in torch.split(torch.randperm(len(labels), generator=stream), 16):
                if to > 1:
                    with torch.no_grad():
                        target = self.part(before, layer, to)(deep[chosen])
                    optimiser.zero_grad()
                    self.difference(target, self.part(model, 1, to)(first[chosen])).backward()
                    optimiser.step()
                optimiser.zero_grad()
                F.cross_entropy(upper(first[chosen]), labels[chosen]).backward()
                optimiser.step()
        return model

    def learn(self, k, number, layer, first):
        model, to = self.clients[k], layer if self.mechanism == "mse" else 6
        with torch.no_grad():
            said = self.part(self.server, 1, to)(first)
        lower = self.part(model, 0, layer)
        optimiser = self.optimiser(model)
        ctx = client_context(self.simulated.setting, DispatchFacts(k, number, self.seen[k], 1))
        for epoch in (0, 1):
            for drawn in ctx.batches(epoch):
                which, (images, labels) = drawn.numbers, ctx.read(drawn)
                optimiser.zero_grad()
                self.difference(said[which], self.part(self.server, layer, to)(lower(images))).backward()
                optimiser.step()
                optimiser.zero_grad()
                F.cross_entropy(model(images), labels).backward()
                optimiser.step()

    def vector(self, model):
        return torch.cat([p.detach().flatten() for p in model.parameters()])


def flat_vector(simulated, vector):
    """A vector with convolutions' weights in torch's own order."""
    module = simulated.setting.module_pool().lend("model", vector)
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        ("", {}),
        ("tau: 2.0", {"tau": 2.0}),
        ("kl_direction: student_teacher", {"direction": "student_teacher"}),
        ("mechanism: mse", {"mechanism": "mse"}),
        (
            "mechanism: mse, dropping: [C2, C3, F1, F2, F3], at_once: true",
            {"mechanism": "mse", "lowest": 1, "at_once": True},
        ),
        ("dropping: [C2, C3, F1, F2, F3], at_once: true", {"lowest": 1, "at_once": True}),
        ("at_once: true", {"at_once": True}),
    ],
    ids=str,
)
def test_three_rounds_are_algorithm_1_written_in_plain_torch(options, plain):
    """Z0 1 and all clients: l = 6, 5, 4 in the three rounds, unless all is dropped at once.

    SGD: in the first round both sides of J are the same model, and Adam makes steps of rounding noise.
    """
    method = f"method={{name: fedd2s, z0: 1{', ' if options else ''}{options}}}"
    sgd = "local.optimizer={lr: 0.1, momentum: 0.5}"
    simulated = simulation(method, "rounds=3", "sampling={fraction: 1.0}", sgd)
    twice = Plain(simulated, **plain)
    simulated.run()
    for number in (1, 2, 3):
        twice.round(number, range(4))
    server = flat_vector(simulated, simulated.servers[-1])
    assert torch.allclose(server, twice.vector(twice.server), atol=1e-5)
    for client, state in states_of(simulated).items():
        assert torch.allclose(flat_vector(simulated, state), twice.vector(twice.clients[client]), atol=1e-5)
    initial = flat_vector(simulated, simulated.setting.module_pool().initial_vector("model"))
    assert (server - initial).abs().max() > 0.02


def test_uploads_of_m1_at_32x32_are_the_published_sizes():
    """Per sample H_1 2,048 floats; H_6 10, H_5 16, H_4 32, H_3 512; labels 8 bytes. Z0 1: 6, 5, 4, 3, 3."""
    data = "data={name: synthetic, samples: 25, classes: 10, shape: [3, 32, 32]}"
    simulated = ended(SMALL, data, "rounds=5", "sampling={fraction: 1.0}", "local.epochs=1")
    samples = int(simulated.setting.partition.sizes.sum())
    heads = [0, 170, 170 + 528, 170 + 528 + 16_416, 170 + 528 + 16_416]
    for record, deep, head in zip(simulated.recorder, [10, 16, 32, 512, 512], heads, strict=True):
        found = {
            (way, kind): 0 for way in ("up", "down") for kind in ("features", "labels", "logits", "weights")
        }
        for row in record.tables["messages"]:
            if row["kind"] != "metadata":
                found[row["direction"], row["kind"]] += row["bytes"]
        assert found["up", "features"] == samples * 4 * (2048 + deep)
        assert found["up", "labels"] == samples * 8
        assert found["down", "logits"] == samples * 4 * 10
        assert found["down", "weights"] == 4 * 4 * head
        assert found["up", "weights"] == found["up", "logits"] == found["down", "features"] == 0


def test_h_1_travels_once_where_it_is_the_distillation_layer():
    data = "data={name: synthetic, samples: 25, classes: 10, shape: [3, 32, 32]}"
    method = "method={name: fedd2s, dropping: [C2, C3, F1, F2, F3], at_once: true}"
    simulated = ended(SMALL, data, method, "sampling={fraction: 1.0}", "local.epochs=1")
    rows = simulated.recorder[0].tables["messages"]
    up = sum(row["bytes"] for row in rows if (row["direction"], row["kind"]) == ("up", "features"))
    assert up == int(simulated.setting.partition.sizes.sum()) * 4 * 2048


def test_squared_error_sends_outputs_of_the_layer_down_and_no_head():
    data = "data={name: synthetic, samples: 25, classes: 10, shape: [3, 32, 32]}"
    simulated = ended(SMALL, data, "method={name: fedd2s, mechanism: mse, at_once: true}", "local.epochs=1")
    down = [row for row in simulated.recorder[0].tables["messages"] if row["direction"] == "down"]
    sizes = simulated.setting.partition.sizes
    assert {row["client"]: row["bytes"] for row in down if row["kind"] == "features"} == {
        client: int(sizes[client]) * 4 * 512 for client in simulated.run_state.records
    }
    assert {row["kind"] for row in down} == {"features"}


def exchange(simulated, state, participation, method):
    """What a client sends, and the context of its second step."""
    setting = simulated.setting
    ctx = client_context(setting, DispatchFacts(0, 1, participation))
    _, reply = method.extract(state, Message(), ctx)
    reply.client = 0
    return reply, client_context(setting, DispatchFacts(0, 1, participation, 1))


def test_server_moves_neither_the_first_layer_nor_the_model_it_started_from():
    """Decay would move a first layer that merely had no gradient."""
    simulated = simulation("local.optimizer.weight_decay=0.1")
    initial = simulated.setting.server_context(1).initial_vector()
    simulated.run()
    layers = Layers(FlatModule(simulated.setting.builders["model"]()))
    assert torch.equal(layers.first(simulated.servers[0], 1), layers.first(initial, 1))
    for single in range(1, 6):
        places = layers.places(single, single + 1)[0]
        assert not torch.equal(simulated.servers[0][places], initial[places])


@pytest.mark.parametrize("participation", [1, 4])
def test_client_without_imitation_is_standalone_bit_for_bit(participation):
    """The same batches, two passes for two epochs."""
    simulated = simulation()
    setting, method = simulated.setting, FedD2S(Options(mechanism="none", passes=2))
    state = simulated.setting.server_context().initial_vector()
    contexts = [client_context(setting, DispatchFacts(0, 1, participation)) for _ in range(2)]
    contexts[1].local = contexts[1].local.model_copy(update={"epochs": 2})
    learned, _ = method.learn(state, Message(), contexts[0])
    alone, _ = StandAlone().client_update(state, Message(), contexts[1])
    assert torch.equal(learned, alone)


def test_passes_are_half_of_the_epochs_unless_given():
    for epochs, passes, expected in ((4, "null", 2), (5, "null", 3), (1, "null", 1), (4, "3", 3)):
        simulated = simulation(f"local.epochs={epochs}", f"method.passes={passes}", "sampling={count: 1}")
        logged = batches_counted(simulated)
        simulated.run()
        (client,) = simulated.run_state.records
        batches = -(-int(simulated.setting.partition.sizes[client]) // 16)
        assert sum(logged) == expected * batches


def test_warm_up_trains_before_a_clients_first_exchange_only():
    simulated = simulation("method.warmup_epochs=2", "local.optimizer={name: sgd, lr: 0.1}")
    method, initial = simulated.setting.method, simulated.setting.server_context().initial_vector()
    setting = simulated.setting
    warmed, first = method.extract(initial, Message(), client_context(setting, DispatchFacts(0, 1, 1)))
    again, second = method.extract(warmed, Message(), client_context(setting, DispatchFacts(0, 2, 2)))
    assert torch.equal(again, warmed)
    # Its first reply was too late, and what it had learned was given up.
    late, _ = method.extract(initial, Message(), client_context(setting, DispatchFacts(0, 2, 2)))
    assert not (torch.equal(warmed, initial) or torch.equal(late, initial))
    assert torch.equal(first["first"], second["first"])
    model = FlatModule(simulated.setting.builders["model"]())
    model.load(initial)
    sgd = torch.optim.SGD(model.module.parameters(), lr=0.1)
    ctx = client_context(setting, DispatchFacts(0, 1, 1))
    for epoch in (0, 1):
        for images, labels in ctx.epoch(epoch):
            model.zero_gradients()
            F.cross_entropy(model(images), labels).backward()
            sgd.step()
    assert torch.allclose(warmed, model.vector(), atol=1e-6)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("method.dropping=[F4]", "method.dropping: the model has no layer F4; it has C1, C2, C3, F1, F2, F3"),
        (
            "method.dropping=[C1, C2, C3, F1, F2, F3]",
            "method.dropping: C1 cannot be dropped: its output travels",
        ),
        ("local.lr_schedule.steps={name: cosine}", "lr_schedule: layers make different numbers of steps"),
    ],
)
def test_bad_options_are_answered_before_the_first_round(override, message):
    with pytest.raises(RecipeError) as caught:
        rayfed_kd.prepare(SMALL, [override])
    assert message in str(caught.value)
