"""What every method must do, over the registry: `rayfed_kd.testing.RULES`, and who holds them."""

import numpy as np
import pytest
import torch
from runs import Silent
from small_recipes import small_recipe

from rayfed_kd.algorithms import METHODS
from rayfed_kd.cluster.engine.calls import StepCall
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.errors import RunError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import DispatchFacts
from rayfed_kd.protocol.state_packing import pack
from rayfed_kd.protocol.state_unpacking import unpack
from rayfed_kd.testing import SMALL, check_method


@pytest.mark.parametrize("name", METHODS)
def test_method_keeps_the_contract(name):
    recipe = small_recipe(dict(SMALL), name)
    method = recipe.pop("method")
    check_method(method.pop("name"), recipe, method)


@pytest.fixture
def setting():
    return prepare(small_recipe(dict(SMALL), "moon")).setting


def calls(setting):
    """The calls of client 3 in two rounds, each with the state that it was given."""
    torch.set_num_threads(1)
    recorded = []

    class Recording(LocalEngine):
        def submit(self, calls, summed=()):
            recorded.extend(calls)
            return super().submit(calls, summed)

    Simulation(setting, Recording(Host(setting)), Silent()).run()
    return [call for call in recorded if call.facts.client == 3]


def test_states_survive_the_wire(setting):
    _, _, state = Host(setting).step(calls(setting)[-1])
    packed = state.resolve()["state"]
    again = pack(unpack(packed))
    assert again.structure == packed.structure
    assert len(packed.arrays) > 0
    assert all(np.array_equal(a, b) for a, b in zip(packed.arrays, again.arrays, strict=True))


def test_kept_state_and_fetched_state_give_the_same_bits(setting):
    """A host that holds the client's state must do what one that fetches it does."""
    first, second = calls(setting)
    holding, fetching = Host(setting, keep_states=4), Host(setting, keep_states=0)
    replies = []
    for host in (holding, fetching):
        _, _, state = host.step(first)
        given = StepCall(second.step, second.facts, second.message, second.metadata, state, first.number, 9)
        replies.append(host.step(given)[1])
    assert all(np.array_equal(replies[0][name], replies[1][name]) for name in replies[0])


def test_host_asks_the_method_for_the_state_of_a_new_client_alone(setting):
    first, second = calls(setting)
    assert first.state is None
    assert second.state is not None
    assert (first.facts, second.facts) == (DispatchFacts(3, 1, 1), DispatchFacts(3, 2, 2))


def test_undeclared_part_is_refused_with_round_client_and_step(setting, monkeypatch):
    monkeypatch.setattr(type(setting.method), "up", {"other": "weights"})
    with pytest.raises(RunError, match=r"round 1, client 0, client_update: part '\w+' goes up undeclared"):
        Simulation(setting, LocalEngine(Host(setting)), Silent()).run()


@pytest.mark.parametrize("name", METHODS)
def test_method_holds_nothing_but_its_options(name):
    method = prepare(small_recipe(dict(SMALL), name)).setting.method
    with pytest.raises(
        AttributeError, match=r"sets self\.cache: a method is frozen, and what changes is state"
    ):
        method.cache = {}
