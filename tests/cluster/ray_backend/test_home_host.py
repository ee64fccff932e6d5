"""Host 0 in the server's process: it works while the server's thread waits, and only then."""

import asyncio
import signal
import threading
import time
from concurrent.futures import Future

import numpy as np
import pytest
import torch
from simulated_cluster import SimulatedLoop

from cluster.engine.calls import EvaluationCall, Held, LiveState, StepCall, StepError, StepFacts
from cluster.ray_backend.dispatch.client_hosts import ClientHosts
from cluster.ray_backend.dispatch.home_host import HomeHost
from cluster.ray_backend.dispatch.jobs import Job
from cluster.ray_backend.dispatch.patience import LEAST_S, LOOK_S, MULTIPLE, Patience
from cluster.ray_backend.mailbox import Mailbox
from cluster.ray_backend.placement import Plan, bundles, trains_in_server
from rayfed_kd.protocol import DispatchFacts
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.sections.placement import ResourceRecipe

FACTS = StepFacts({}, {}, (), {}, 0, 0, "here", 0.0, 0.0, keeps_state=False)


def step(client):
    return StepCall("client_update", DispatchFacts(client, 1, 1), Held(), {}, None, -1, 1)


def job(*clients, call=None):
    calls = [call] if call else [step(client) for client in clients]
    return Job(1, calls, [Future() for _ in calls], 10)


class Host:
    """Answers with the client's id, and notes in which thread it was called; client 13 fails."""

    def __init__(self):
        self.threads, self.clients = set(), []

    def step(self, call):
        self.threads.add(threading.get_ident())
        if call.facts.client == 13:
            raise StepError("client 13 failed")
        self.clients.append(call.facts.client)
        return FACTS, {"w": np.full(2, call.facts.client)}, LiveState(None)

    def steps(self, calls):
        return tuple(map(list, zip(*map(self.step, calls), strict=True)))

    def evaluate(self, call):
        return call.stop - call.start


@pytest.fixture
def loop():
    """An event loop in a thread, as the engine has one."""
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join()
    made.close()


@pytest.fixture
def ask(loop):
    """Runs jobs on a home host, whose thread is the test's; gives its outcomes."""

    def asked(host, jobs, begun=lambda: None):
        mailbox = Mailbox()
        call = HomeHost(host, mailbox).call(jobs, None, begun)
        return mailbox.result(asyncio.run_coroutine_threadsafe(call, loop), timeout_s=20)

    return asked


def values(results):
    return [int(result.parts.resolve()["w"][0]) for result in results]


def test_jobs_run_in_the_thread_that_waits(ask):
    host, begun = Host(), []
    (results,) = ask(host, [job(3)], lambda: begun.append(1))
    assert values(results) == [3]
    assert host.threads == {threading.get_ident()}
    assert begun == [1]


def test_step_computes_gradients_whatever_the_server_does_while_it_waits(ask):
    """A server may ask its clients in a block without gradients, or in bfloat16."""
    seen = []

    class Looking(Host):
        def step(self, call):
            weight = torch.ones(2, requires_grad=True)
            product = weight[None] @ weight[:, None]
            seen.append((product.requires_grad, product.dtype, torch.is_inference_mode_enabled()))
            return super().step(call)

    for block in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu")):
        with block:
            ask(Looking(), [job(3)])
    assert seen == [(True, torch.float32, False)] * 3


def test_group_gives_one_result_for_each_client_in_order(ask):
    (results,) = ask(Host(), [job(4, 2, 7)])
    assert values(results) == [4, 2, 7]


def test_of_several_short_steps_one_that_fails_leaves_the_others(ask):
    first, failed, last = ask(Host(), [job(1), job(13), job(5)])
    assert values(first) == [1]
    assert values(last) == [5]
    assert isinstance(failed, StepError)


def test_error_of_a_single_step_is_raised(ask):
    with pytest.raises(StepError, match="client 13"):
        ask(Host(), [job(13)])


def test_evaluation_runs_here_too(ask):
    assert ask(Host(), [job(call=EvaluationCall(Held(), "m", "model", "local", 5, 9))]) == [[4]]


def test_steps_that_were_given_up_in_the_mailbox_are_not_trained(ask):
    host, given_up = Host(), job(3)
    given_up.futures[0].cancel()
    ask(host, [given_up])
    assert host.clients == []


def test_call_that_takes_too_long_ends_the_run_as_ctrl_c_does():
    """Also out of a wait that Python cannot leave by itself."""
    home = HomeHost(Host(), Mailbox())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.2, home.replace, ["took too long"]).start()
        with pytest.raises(KeyboardInterrupt):
            time.sleep(20)
    finally:
        signal.signal(signal.SIGINT, before)
    assert home.overdue == "took too long"


def test_work_is_done_in_order_and_only_while_something_is_waited_for():
    mailbox, done, awaited = Mailbox(), [], Future()
    mailbox.post(lambda: done.append(1))
    mailbox.post(lambda: awaited.set_result("there"))
    mailbox.post(lambda: done.append(2))
    assert done == []
    assert mailbox.result(awaited) == "there"
    assert done == [1]  # the rest waits until something is waited for again
    mailbox.empty()
    assert done == [1, 2]


def test_future_of_another_thread_wakes_the_wait():
    mailbox, awaited = Mailbox(), Future()
    threading.Timer(0.1, awaited.set_result, ["there"]).start()
    assert mailbox.result(awaited, timeout_s=20) == "there"


def test_wait_without_end_is_ended_by_its_limit_and_by_what_the_work_raises():
    mailbox = Mailbox()
    with pytest.raises(TimeoutError):
        mailbox.result(Future(), timeout_s=0.01)
    mailbox.post(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        mailbox.result(Future())


def test_home_host_has_one_call_at_a_time_and_actors_two():
    """What lies in its mailbox might run elsewhere meanwhile; an actor would wait for its next call."""
    plan = Plan(2, False, 1, ResourceRecipe(), ResourceRecipe(), home=True)
    hosts = ClientHosts(["an actor"], None, plan, home=HomeHost(Host(), Mailbox()))
    hosts.building.clear()
    taken = []
    while (host := hosts.free(job(1), depth=2)) is not None:
        hosts.load[host] += 1
        taken.append(host)
    assert taken == [0, 1, 1]


def test_time_in_the_mailbox_counts_for_no_limit():
    """The server may compute for hours before it waits; a step is too long only once it has begun."""
    loop = SimulatedLoop()
    patience = Patience("auto", loop, 1)

    async def call(waits_s, takes_s):
        turn = patience.begin(0, [job(1)], waits=True)
        try:
            await asyncio.sleep(waits_s)
            patience.started(turn)
            await asyncio.sleep(takes_s)
            patience.end(0, turn, answered=True)
        except asyncio.CancelledError:
            patience.end(0, turn, answered=False)
        return turn.limit

    most_s = max(LEAST_S, MULTIPLE * 10.0)
    try:
        assert loop.run_until_complete(call(20 * most_s, 10.0)) == ""
        assert loop.run_until_complete(call(20 * most_s, most_s - LOOK_S)) == ""
        longest_s = most_s - LOOK_S
        assert loop.run_until_complete(call(5.0, MULTIPLE * longest_s + 2 * LOOK_S))
    finally:
        loop.close()


def test_home_host_is_no_actor_of_the_placement_group():
    plan = Plan(3, False, 1, ResourceRecipe(num_cpus=2), ResourceRecipe(num_cpus=1), home=True)
    assert bundles(plan).requests == [{"CPU": 1}, {"CPU": 2}, {"CPU": 2}]


@pytest.mark.parametrize(
    ("overrides", "trains"),
    [
        ([], True),
        (["placement.train_in_server=false"], False),
        (["placement.clients_per_actor=1"], False),
        (["placement.client.num_gpus=0.5"], False),
        (["placement.client.resources={fast: 1}"], False),
        (["placement.client.label_selector={zone: a}"], False),
        (["placement.overrides=[{clients: [0], num_cpus: 2}]"], False),
        (["schedule={name: fedbuff}"], False),
        (["faults.step_timeout_s=60"], False),
        (["faults.step_timeout_s=null"], True),
    ],
)
def test_server_trains_where_it_only_waits_and_no_host_must_be_ended_alone(overrides, trains):
    assert trains_in_server(load_recipe("quickstart", overrides)) == trains
