"""What every method must do, over the registry; a user's own method passes it with one more name.

The rules, in "must" form: states must survive the wire; a step must not change its state or message; the
same call must give the same bits; permuting the cohort must change nothing; only declared parts may cross.
"""

import copy

import numpy as np
import pytest
import torch
from small_recipes import small_recipe

from algorithms import METHODS
from cluster.engine.calls import Held, StepCall
from cluster.engine.host import Host
from cluster.engine.local import LocalEngine
from cluster.server.cohort import EngineCohort
from cluster.server.simulation import Simulation
from rayfed_kd.errors import RunError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import DispatchFacts, OneExchange, Replies, to_array
from rayfed_kd.protocol.codec import pack, unpack
from rayfed_kd.recipe.registry import load_object


def one_exchange():
    """The methods whose round is one message down and one reply up."""
    return [name for name, location in METHODS.items() if issubclass(load_object(location, ""), OneExchange)]


def small(name):
    torch.set_num_threads(1)
    recipe = {
        "model": {"name": "lenet5"},
        "data": {"name": "digits", "fraction": 0.2},
        "partition": {"name": "dirichlet", "alpha": 1.0, "clients": 4},
        "local": {"epochs": 1, "batch_size": 32},
        "rounds": 2,
        "sampling": {"fraction": 1.0},
    }
    return prepare(small_recipe(recipe, name)).setting


@pytest.fixture(params=one_exchange())
def setting(request):
    return small(request.param)


@pytest.fixture(params=METHODS)
def any_setting(request):
    return small(request.param)


class Silent:
    def record(self, record):
        pass

    def close(self, status):
        return {}


def simulation(setting):
    return Simulation(setting, LocalEngine(Host(setting)), Silent())


def tensors(tree):
    return [torch.from_numpy(array.copy()) for array in pack(tree).arrays]


def first_call(setting, state=None):
    run = simulation(setting)
    ctx = run._context(1)
    message = setting.method.dispatch(setting.method.init_server(ctx), ctx)
    held = Held({name: to_array(part).copy() for name, part in message.parts.items()})
    return StepCall("client_update", DispatchFacts(last(setting), 1, 1), held, message.metadata, state, 0, 1)


def last(setting):
    return len(setting.partition.train) - 1


def steps(setting):
    """Step name -> its last call in two rounds, with the state that it was given."""
    run, calls = simulation(setting), {}
    submit = run.engine.submit
    run.engine.submit = lambda asked: calls.update({call.step: call for call in asked}) or submit(asked)
    run.run()
    return calls


def assert_equal(first, second):
    assert len(first) == len(second) > 0
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_states_survive_the_wire(setting):
    _, parts, state = Host(setting).step(first_call(setting))
    packed = state["state"]
    again = pack(unpack(packed))
    assert again.structure == (packed and packed.structure)
    assert bool(parts) == bool(setting.method.up)
    assert all((a == b).all() for a, b in zip(packed.arrays if packed else [], again.arrays, strict=True))


def test_same_call_twice_gives_the_same_bits(setting):
    host = Host(setting)
    first, again = host.step(first_call(setting)), host.step(first_call(setting))
    assert all((first[1][name] == again[1][name]).all() for name in first[1])
    assert first[0].logged == again[0].logged


def test_step_leaves_its_message_and_state_as_they_were(setting):
    host = Host(setting)
    _, _, state = host.step(first_call(setting))
    held = Held(copy.deepcopy(state))
    call = first_call(setting, held)
    sent = {name: array.copy() for name, array in call.message.resolve().items()}
    fresh = Host(setting, keep_states=0)
    fresh.step(call)
    assert all((call.message.resolve()[name] == sent[name]).all() for name in sent)
    decoded = [unpack(s["state"]) for s in (held.resolve(), state)]
    assert all(torch.equal(a, b) for a, b in zip(*map(tensors, decoded), strict=True))
    kept = {name: tensor.clone() for name, tensor in fresh._message[1].items()}
    fresh.step(call)
    assert all(torch.equal(fresh._message[1][name], kept[name]) for name in kept)


def test_kept_state_and_fetched_state_give_the_same_bits(setting):
    """A host that holds the client's state must do what one that fetches it does."""
    holding, fetching = Host(setting, keep_states=4), Host(setting, keep_states=0)
    facts = DispatchFacts(last(setting), 2, 2)
    results = []
    for host in (holding, fetching):
        _, _, state = host.step(first_call(setting))
        call = first_call(setting, Held(state))
        second = StepCall("client_update", facts, call.message, call.metadata, call.state, 1, 2)
        results.append(host.step(second)[1])
    assert all((results[0][name] == results[1][name]).all() for name in results[0])


def test_permuted_replies_change_nothing(setting):
    run = simulation(setting)
    ctx = run._context(1)
    server = run.begin().server
    cohort = EngineCohort(1, run.run_state)
    replies = cohort.broadcast(setting.method.client_update, setting.method.dispatch(server, ctx))
    shuffled = Replies([*replies[2:], *replies[:2]])
    first, second = (setting.method.absorb(server, order, run._context(1)) for order in (replies, shuffled))
    if server is not None:
        assert_equal(tensors(first), tensors(second))


def test_replayed_steps_give_the_same_bits_and_leave_state_and_message(any_setting):
    """Also for methods of several exchanges, whose steps go on from each other's states."""
    for call in steps(any_setting).values():
        sent = copy.deepcopy(call.message.resolve())
        state = copy.deepcopy(call.state.resolve()) if call.state is not None else {}
        host = Host(any_setting, keep_states=0)
        (facts, parts, new), (facts_again, parts_again, new_again) = host.step(call), host.step(call)
        assert parts.keys() == parts_again.keys()
        assert all(np.array_equal(parts[name], parts_again[name]) for name in parts)
        assert facts.logged == facts_again.logged
        assert same_arrays(new, new_again)
        assert same_arrays(sent, call.message.resolve())
        assert call.state is None or same_arrays(state, call.state.resolve())


def test_client_keeps_says_nothing_exactly_where_steps_leave_no_state(any_setting):
    host, method = Host(any_setting, keep_states=0), any_setting.method
    left = [host.step(call)[2]["state"] for call in steps(any_setting).values()]
    stateless = all(state is None for state in left)
    said = f"{type(method).__name__}.client_keeps = {method.client_keeps!r}"
    assert (method.client_keeps == "nothing") == stateless, f"{said}, its steps leave {[*map(type, left)]}"


def same_arrays(first, second):
    pairs = zip(tensors(unpack(first, "cpu")), tensors(unpack(second, "cpu")), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_undeclared_part_is_refused_with_round_client_and_step(setting, monkeypatch):
    if not setting.method.up:
        pytest.skip("nothing goes up")
    monkeypatch.setattr(type(setting.method), "up", {"other": "weights"})
    with pytest.raises(RunError, match=r"round 1, client 0, client_update: part '\w+' goes up undeclared"):
        simulation(setting).run()


def test_method_holds_nothing_but_its_options(setting):
    with pytest.raises(AttributeError, match="a method is frozen: cache belongs into a state"):
        setting.method.cache = {}


def test_global_generators_are_left_alone(any_setting):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    simulation(any_setting).run()
    assert torch.equal(torch.rand(1), expected)
