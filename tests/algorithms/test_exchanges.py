"""The contract of methods with exchanges of their own: every step that their rounds start is started again.

A step must give the same bits wherever and however often it runs, from a state kept or fetched, and must
leave its message and its state as they were; states must survive the wire and the checkpoint.
"""

import copy

import numpy as np
import pytest
import torch
from runs import Silent

from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol.state_packing import pack
from rayfed_kd.protocol.state_unpacking import unpack

SERVER = {"server": {"name": "resnet8", "width": 4}, "server_batch_size": 64}
CUT = {"server": {"name": "bottleneck_resnet", "blocks": [1, 1, 1], "width": 4}, "server_epochs": 1}
METHODS = {
    "fedmd": {},
    "cronus": {},
    "dsfl": {},
    "fedgem": SERVER,
    "fedgems": {**SERVER, "plateau": {"patience": 0}},
    "fedgkt": CUT,
    "fedict": CUT,
}
STEPS = {
    "cronus": {"predict", "update"},
    "dsfl": {"update", "distil"},
    "fedgkt": {"train", "keep"},
    "fedict": {"train", "keep"},
}
MODELS = [{"name": "lenet5"}, {"name": "bottleneck_resnet", "width": 4}]
BEHIND_ONE_CUT = [
    {"name": "bottleneck_resnet", "width": 4},
    {"name": "bottleneck_resnet", "width": 4, "blocks": [1, 2, 1]},
]


class Recording(LocalEngine):
    """A local engine that keeps every call with what its reference held, and its result."""

    def __init__(self, host):
        super().__init__(host)
        self.steps = []

    def submit(self, calls, summed=()):
        (call,) = calls
        held = copy.deepcopy(call.message.resolve())
        state = None if call.state is None else copy.deepcopy(call.state.resolve())
        futures = super().submit(calls, summed)
        self.steps.append((call, held, state, futures[0].result()))
        return futures


@pytest.fixture(params=METHODS, scope="module")
def ran(request):
    torch.set_num_threads(1)
    models = BEHIND_ONE_CUT if METHODS[request.param] is CUT else MODELS
    recipe = {
        "method": {"name": request.param, **METHODS[request.param]},
        "model": models[0],
        "client_models": {"models": models},
        "data": {"name": "digits", "fraction": 0.2},
        "partition": {"name": "dirichlet", "alpha": 1.0, "clients": 3, "public": {"fraction": 0.5}},
        "local": {"epochs": 1, "batch_size": 32, "optimizer": {"name": "adam", "lr": 0.01}},
        "rounds": 2,
        "sampling": {"fraction": 1.0},
        "evaluation": {"samples": False},
    }
    setting = prepare(recipe).setting
    engine = Recording(Host(setting, keep_states=3))
    torch.manual_seed(3)
    expected = torch.random.get_rng_state()
    simulation = Simulation(setting, engine, Silent())
    simulation.run()
    assert torch.equal(torch.random.get_rng_state(), expected), "a global generator was drawn from"
    return setting, engine, simulation


def equal(first, second):
    """Two trees of arrays, by their packed form."""
    left, right = pack(first), pack(second)
    pairs = zip(left.arrays, right.arrays, strict=True)
    return left.structure == right.structure and all(np.array_equal(one, other) for one, other in pairs)


def test_every_step_was_started(ran):
    setting, engine, _ = ran
    started = {call.step for call, *_ in engine.steps}
    assert started == STEPS.get(setting.recipe.method.name, {"start", "predict", "update"})


def test_steps_give_the_same_bits_on_a_host_that_must_fetch_their_state(ran):
    setting, engine, _ = ran
    fresh = Host(setting, keep_states=0)
    for call, _, _, result in engine.steps:
        facts, parts, state = fresh.step(call)
        assert equal(dict(parts), dict(result.parts.resolve())), call
        assert equal(state.resolve(), result.state.resolve()), call
        assert facts.logged == result.facts.logged


def test_steps_leave_their_message_and_state_as_they_were(ran):
    _, engine, _ = ran
    for call, held, state, _ in engine.steps:
        assert equal(dict(call.message.resolve()), dict(held)), call
        assert state is None or equal(call.state.resolve(), state), call


def test_states_survive_the_wire(ran):
    _, engine, _ = ran
    for *_, result in engine.steps:
        packed = result.state.resolve()["state"]
        assert equal(pack(unpack(packed)), packed)


def test_method_holds_nothing_but_its_options(ran):
    setting, *_ = ran
    with pytest.raises(
        AttributeError, match=r"sets self\.cache: a method is frozen, and what changes is state"
    ):
        setting.method.cache = {}
