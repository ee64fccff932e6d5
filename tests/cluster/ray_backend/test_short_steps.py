"""Short steps cross to a host in few calls: results, errors and second tries are as of calls of their own."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import ray
from event_loops import LoopThread
from runs import Silent
from small_recipes import small_recipe

from rayfed_kd.cluster.engine.calls import Held, StepCall, StepError
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.ray_backend.client_actor import ClientActor
from rayfed_kd.cluster.ray_backend.dispatch.job_queue import MOST_S
from rayfed_kd.cluster.ray_backend.dispatch.jobs import Job
from rayfed_kd.cluster.ray_backend.engine import RayEngine
from rayfed_kd.cluster.ray_backend.placement import Plan
from rayfed_kd.cluster.server.cohort import EngineCohort
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import DispatchFacts, Message
from rayfed_kd.recipe.sections.placement import ResourceRecipe
from rayfed_kd.recipe.sections.safety import FaultsRecipe

CLIENTS = 40
RECIPE = {
    "model": {"name": "mlp", "hidden": 4},
    "data": {"name": "synthetic", "samples": 200, "test_samples": 10, "shape": [8]},
    "partition": {"name": "iid", "clients": CLIENTS},
    "local": {"epochs": 1, "batch_size": 5},
    "rounds": 1,
}


class Ref:
    """What a call of an actor gives, without Ray: a reference that can be waited for."""

    def __init__(self, whole, place):
        self._whole, self._place = whole, place

    def future(self):
        found = Future()

        def hand_on(done):
            if found.cancelled():
                return
            if done.exception() is not None:
                found.set_exception(done.exception())
            else:
                found.set_result(done.result() if self._place is None else done.result()[self._place])

        self._whole.add_done_callback(hand_on)
        return found


class Remote:
    """A method of an actor, called as Ray's are."""

    def __init__(self, owner, name, returns):
        self._owner, self._name, self._returns = owner, name, returns

    def options(self, name, num_returns=1):
        return Remote(self._owner, self._name, num_returns)

    def remote(self, *given):
        self._owner.called.append((self._name, given))
        whole = self._owner.pool.submit(self._owner.answer_to, self._name, given)
        return Ref(whole, None) if self._returns == 1 else [Ref(whole, n) for n in range(self._returns)]


class InProcess(ClientActor):
    """A client actor in a thread of this process."""

    def __init__(self, host, failures=0, hang_s=0.0, each_s=0.0):
        super().__init__()
        self.host, self.failures, self.hang_s = host, failures, hang_s
        self.each_s = each_s
        self.called, self.pool = [], ThreadPoolExecutor(1)

    def __getattribute__(self, name):
        return Remote(self, name, 1) if name in ("run", "build") else super().__getattribute__(name)

    def answer_to(self, name, given):
        if name == "build":
            self._built = self.host
            return None
        several = len(given[1]) > 1
        if several and self.failures:
            self.failures -= 1
            raise ray.exceptions.ActorUnavailableError("it was killed", None)
        time.sleep(self.each_s)
        if several:
            hang_s, self.hang_s = self.hang_s, 0.0
            time.sleep(hang_s)
        return getattr(ClientActor, name)(self, *given)


class Paced(Host):
    """Says that steps take a millisecond, or as told: how busy the machine is decides nothing."""

    seconds = 0.001

    def step(self, call):
        facts, parts, state = super().step(call)
        return replace(facts, seconds=self.seconds), parts, state


class Long(Paced):
    seconds = 2 * MOST_S


class Ill(Paced):
    """One client's step raises."""

    def step(self, call):
        if call.facts.client == 7:
            raise StepError("client 7 has a bug")
        return super().step(call)


@pytest.fixture
def setting():
    return prepare(small_recipe(RECIPE, "fedavg")).setting


@pytest.fixture
def engine(setting):
    thread = LoopThread()

    def make(actors, pinned=False, max_retries=2, step_timeout_s=None, **options):
        plan = Plan(len(actors), pinned, 1, ResourceRecipe(), ResourceRecipe())
        faults = FaultsRecipe(max_retries=max_retries, step_timeout_s=step_timeout_s)
        sizes = setting.partition.sizes.tolist()
        return RayEngine(actors, None, plan, sizes, thread.loop, faults=faults, **options)

    yield make
    thread.end()


def asked(setting, engine):
    message = engine.publish({"student": setting.module_pool().initial_vector("model").numpy()})
    facts = [DispatchFacts(client, 1, 1) for client in range(CLIENTS)]
    return [StepCall("client_update", one, message, {}, None, -1, one.client + 1) for one in facts]


def answers(engine, calls):
    """Trained vectors or errors of two rounds: the first one tells how long steps take."""
    found = []
    for _ in range(2):
        pending = [engine.submit([call])[0] for call in calls]
        found += [one.exception(timeout=60) or one.result() for one in pending]
    return [one if isinstance(one, Exception) else one.parts.resolve()["student"] for one in found]


def sent(actors):
    """How many steps crossed in each call."""
    return [len(given[1]) for actor in actors for name, given in actor.called if name == "run"]


def expected(setting):
    local = LocalEngine(Host(setting))
    return answers(local, asked(setting, local))


def test_short_steps_cross_in_few_calls_with_the_bits_of_each_alone(setting, engine):
    actors = [InProcess(Paced(setting, number)) for number in range(2)]
    found = answers(made := engine(actors), asked(setting, made))
    assert all(np.array_equal(one, other) for one, other in zip(found, expected(setting), strict=True))
    calls = sent(actors)
    assert max(calls) > 1
    assert len(calls) < CLIENTS + CLIENTS / 2  # the second round's 40 steps took less than 20


def test_client_without_a_state_leaves_nothing_to_fetch(setting, engine):
    """A checkpoint asks for every seen client's state."""
    simulation = Simulation(setting, engine([InProcess(Paced(setting))]), Silent())
    simulation.begin()
    vector = setting.module_pool().initial_vector("model")
    for round_index in (1, 2):
        cohort = EngineCohort(round_index, simulation.run_state)
        cohort.broadcast(setting.method.client_update, Message(student=vector))
    states = [record.state for record in simulation.run_state.records.values()]
    assert states
    assert all(isinstance(state, Held) and state.resolve() == {"state": None} for state in states)


@pytest.mark.parametrize(("kind", "count", "pinned"), [(Long, 1, False), (Paced, CLIENTS, True)])
def test_steps_go_alone_that_are_long_or_belong_to_a_host(kind, count, pinned, setting, engine):
    actors = [InProcess(kind(setting, number)) for number in range(count)]
    answers(made := engine(actors, pinned=pinned), asked(setting, made))
    assert set(sent(actors)) == {1}


def test_error_of_one_step_is_its_own(setting, engine):
    actors = [InProcess(Ill(setting))]
    found = answers(made := engine(actors), asked(setting, made))
    assert max(sent(actors)) > 1
    for place, (one, other) in enumerate(zip(found, expected(setting), strict=True)):
        if place % CLIENTS == 7:
            assert isinstance(one, StepError)
            assert "client 7 has a bug" in str(one)
        else:
            assert np.array_equal(one, other)


def test_steps_whose_host_was_lost_run_again_each_alone(setting, engine):
    actors = [InProcess(Paced(setting), failures=1)]
    found = answers(made := engine(actors), asked(setting, made))
    assert all(np.array_equal(one, other) for one, other in zip(found, expected(setting), strict=True))
    runs = [given for name, given in actors[0].called if name == "run"]
    place = next(place for place, given in enumerate(runs) if len(given[1]) > 1)
    numbers = {call.number for call in runs[place][0].calls()}
    later = [given[0].calls()[0].number for given in runs[place:] if len(given[1]) == 1]
    assert numbers <= set(later)


def test_host_that_is_lost_too_often_ends_its_steps_with_the_reason(setting, engine):
    actors = [InProcess(Paced(setting), failures=1)]
    found = answers(made := engine(actors, max_retries=0), asked(setting, made))
    lost = [one for one in found if isinstance(one, Exception)]
    assert lost
    assert all("its host was lost once (faults.max_retries = 0)" in str(one) for one in lost)


def test_a_step_that_hangs_among_others_is_found_as_soon_as_one_alone(setting, engine, monkeypatch):
    actors, killed = [InProcess(Paced(setting), hang_s=4.0)], []
    monkeypatch.setattr(ray, "kill", lambda actor, no_restart: killed.append(actor))
    told = []
    found = answers(made := engine(actors, step_timeout_s=2.5, tell=told.append), asked(setting, made))
    assert killed == actors
    assert len(told) == 1
    assert told[0].startswith("host 0 took longer than faults.step_timeout_s = 2.5; it is restarted")
    assert all(np.array_equal(one, other) for one, other in zip(found, expected(setting), strict=True))


def test_with_a_time_limit_a_step_that_waits_at_a_host_has_its_whole_time(setting, engine, monkeypatch):
    actors, killed = [InProcess(Long(setting), each_s=0.5)], []
    monkeypatch.setattr(ray, "kill", lambda actor, no_restart: killed.append(actor))
    made = engine(actors, step_timeout_s=0.9)
    pending = [made.submit([call])[0] for call in asked(setting, made)[:6]]
    assert all(one.result(timeout=60) for one in pending)
    assert not killed


def test_small_message_is_a_copy_that_travels_with_calls(setting, engine):
    made = engine([InProcess(Paced(setting))])
    vector = np.arange(3, dtype=np.float32)
    one, other = made.publish({"student": vector}), made.publish({"student": vector})
    vector[0] = 9.0
    assert isinstance(one, Held)
    assert one.resolve()["student"].tolist() == [0.0, 1.0, 2.0]
    assert one == Held({}, one.name)
    assert one != other  # a host keeps the tensors of the message that it knows by name


class GivenUpMeanwhile(Future):
    """The server's thread gives the step up after the engine has looked at it, and before its answer."""

    def set_result(self, result):
        self.cancel()
        super().set_result(result)


def test_step_that_is_given_up_while_it_ends_leaves_the_others_their_results(setting, engine):
    made = engine([InProcess(Paced(setting))])
    calls = asked(setting, made)[:3]
    result = made.submit(calls[:1])[0].result(timeout=60)
    futures = [Future(), GivenUpMeanwhile(), Future()]
    made._end(Job(1, calls, futures, 1), [result] * 3)
    assert futures[1].cancelled()
    assert futures[0].result(timeout=1) is futures[2].result(timeout=1) is result


def test_a_bug_in_choosing_a_host_ends_the_round_and_does_not_hang(setting, engine):
    """Raised in the event loop, it would only be logged."""
    made = engine([InProcess(Paced(setting))])
    made._clients.free = None
    (pending,) = made.submit(asked(setting, made)[:1])
    with pytest.raises(TypeError, match="not callable"):
        pending.result(timeout=60)
