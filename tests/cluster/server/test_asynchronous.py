"""Runs without rounds: order of events, sync as a case of them, the same bits everywhere."""

import math
from concurrent.futures import Future
from itertools import product
from threading import Timer

import numpy as np
import pytest
from runs import run_in_process
from small_recipes import SIX_LENETS, assert_resumed_is_whole, assert_same_run, small_recipe

import rayfed_kd
from rayfed_kd.cluster.engine.calls import Held, StepCall, StepFacts, StepResult
from rayfed_kd.cluster.server.event_queue import Dispatch, EventQueue
from rayfed_kd.errors import RecipeError, RunError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import DispatchFacts
from rayfed_kd.protocol.wire import PartSize
from rayfed_kd.timing import Clock, ClockFacts, Devices
from rayfed_kd.timing.clock import NoClock
from rayfed_kd.timing.clocks import DeviceClock

RECIPE = {**SIX_LENETS, "clock": {"name": "lognormal"}}
TWO_HOSTS = "placement.clients_per_actor=3"
METHODS = ("fedavg", "fedkf", "kdia", "dafkd")
# Each schedule and each method once; all others are slow.
FAST = (("next_round", "fedkf"), ("fedbuff", "kdia"), ("fedasync", "dafkd"), ("fedasync", "fedavg"))
RESUMED = [
    pytest.param(*pair, marks=[] if pair in FAST else pytest.mark.slow)
    for pair in product(("next_round", "fedbuff", "fedasync"), METHODS)
]
SCHEDULES = {
    "sync": {"name": "sync"},
    "quorum": {"name": "quorum", "min_fraction": 0.6},
    "next_round": {"name": "quorum", "min_fraction": 0.6, "late": "next_round"},
    "fedbuff": {"name": "fedbuff", "buffer": 2},
    "fedasync": {"name": "fedasync"},
}


def recipe_of(method="fedavg", options=None, **changes):
    options = options or ({"track_oca": True} if method == "fedavg" else {})
    return {**small_recipe(RECIPE, method, **options), **changes}


def run(*overrides, **changes):
    return run_in_process(recipe_of(**changes), *overrides)


class Work:
    """An engine whose steps end when the test says so."""

    def __init__(self):
        self.futures = {}

    def submit(self, calls, summed_sizes=()):
        (call,) = calls
        self.futures[call.facts.client] = Future()
        return [self.futures[call.facts.client]]

    def done(self, client, samples=0, up=0):
        facts = StepFacts({}, {"student": PartSize(up, up, up)}, (), {}, samples, 0, "", 0.0, 0.0)
        self.futures[client].set_result(StepResult(facts, Held(), Held()))


@pytest.fixture
def work():
    return Work()


def dispatch(number, client, at=0.0, samples=0):
    call = StepCall("step", DispatchFacts(client, 1, 1), Held(), {}, None, 0, number)
    return Dispatch(number, at, call, 0, {}, samples)


def event_queue(work, *seconds_per_sample, up_mbit_s=None):
    clients = len(seconds_per_sample)
    up = np.full(clients, 1e12) if up_mbit_s is None else np.array(up_mbit_s)
    devices = Devices(
        np.array(seconds_per_sample), up, np.full(clients, 1e12), np.zeros(clients), (None,) * clients
    )
    return EventQueue(
        work, DeviceClock(None, ClockFacts(clients, seed=1, devices=devices)), {"student": "weights"}
    )


def test_replies_land_in_simulated_order_whatever_ends_first(work):
    queue = event_queue(work, 3.0, 1.0, 2.0)
    for client in range(3):
        queue.start(dispatch(client + 1, client, samples=10))
    for client in (0, 2, 1):
        work.done(client, samples=10)
    landed = []
    while arrival := queue.next():
        landed.append((arrival[0].client, queue.now))
    assert landed == [(1, 10.0), (2, 20.0), (0, 30.0)]


def test_reply_that_is_surely_first_is_taken_while_others_still_work(work):
    """Client 0 needs 100 s at least, so that client 1's reply at 10 s cannot be overtaken."""
    queue = event_queue(work, 10.0, 1.0)
    queue.start(dispatch(1, 0, samples=10))
    queue.start(dispatch(2, 1, samples=10))
    work.done(1, samples=10)
    assert queue.next()[0].client == 1
    assert not work.futures[0].done()


def test_upload_and_more_work_than_expected_change_the_order(work):
    """Client 0: 10 s and 8 Mbit up at 1 Mbit/s: 18 s. Client 1: at least 5 s, but 17 for 17 samples."""
    queue = event_queue(work, 1.0, 1.0, up_mbit_s=[1.0, 1e12])
    queue.start(dispatch(1, 0, samples=10))
    queue.start(dispatch(2, 1, samples=5))
    work.done(0, samples=10, up=1_000_000)
    work.done(1, samples=17)
    assert [(queue.next()[0].client, queue.now) for _ in range(2)] == [(1, 17.0), (0, 18.0)]


class Late(Clock):
    """Says that nothing arrives before second 5, and then that something did."""

    def earliest(self, client, at, bytes_down, least_samples):
        return 5.0

    def arrival(self, client, at, bytes_down, samples, bytes_up):
        return 4.0 if client else float("nan")


@pytest.mark.parametrize(("client", "second"), [(0, "nan"), (1, "4.0")])
def test_clock_whose_replies_arrive_before_their_earliest_second_is_refused(client, second, work):
    """Their order would depend on what the server happened to ask first."""
    queue = EventQueue(work, Late(None, ClockFacts(2, seed=1)), {"student": "weights"})
    queue.start(dispatch(1, client))
    work.done(client)
    with pytest.raises(RunError, match=rf"client {client} arrives at {second} s, and `earliest` gave 5.0 s"):
        queue.next()


def test_replies_of_one_second_land_in_client_order_then_by_dispatch(work):
    queue = EventQueue(work, NoClock(None, ClockFacts(10, seed=1)), {})
    for number, client in enumerate([5, 2, 9], start=1):
        queue.start(dispatch(number, client))
    for client in (9, 5, 2):
        work.done(client)
    assert [queue.next()[0].client for _ in range(3)] == [2, 5, 9]


def test_time_goes_on_to_the_deadline_if_nothing_lands(work):
    queue = event_queue(work, 1.0)
    queue.start(dispatch(1, 0, samples=10))
    assert queue.next(until=4.0) is None
    assert (queue.now, len(queue)) == (4.0, 1)


class Shifts(NoClock):
    """Clients 0 and 1 are there until second 50, client 2 from then on."""

    def available(self, clients, now):
        return [client for client in clients if (client < 2) == (now < 50)]

    def next_available(self, clients, now):
        return 50.0 if now < 50 else math.inf


def test_clients_at_work_are_not_available_and_time_does_not_go_on_for_others(work):
    queue = EventQueue(work, Shifts(None, ClockFacts(3, seed=1)), {})
    assert queue.available([0, 1, 2]) == [0, 1]
    queue.start(dispatch(1, 0))
    assert queue.clients == {0}
    assert (queue.available([0, 1, 2]), queue.available([0, 2]), queue.now) == ([1], [], 0.0)


def test_time_goes_on_to_the_next_client_if_nobody_is_at_work():
    queue = EventQueue(Work(), Shifts(None, ClockFacts(3, seed=1)), {})
    queue.now = 20.0
    queue.start(dispatch(1, 0))
    queue.give_up()
    assert (queue.available([1]), queue.now) == ([1], 20.0)
    assert (queue.available([2]), queue.now) == ([2], 50.0)


def test_a_step_that_has_failed_ends_the_run_though_nobody_waits_for_it(work):
    """So it does without Ray, where a step ends as it is sent."""
    queue = EventQueue(work, None, {})
    for client in (0, 1):
        queue.start(dispatch(client, client))
    work.futures[1].set_exception(ZeroDivisionError("of client 1"))
    with pytest.raises(ZeroDivisionError, match="of client 1"):
        queue.give_up()


@pytest.mark.parametrize("clock", [NoClock(None, ClockFacts(1, seed=1)), None])
def test_seconds_of_waiting_are_counted(clock, work):
    queue = EventQueue(work, clock, {})
    queue.start(dispatch(1, 0))
    Timer(0.05, work.done, [0]).start()
    queue.next()
    assert 0.03 < queue.waited_s < 30


def test_real_seconds_go_on_from_those_of_a_checkpoint(work):
    queue = EventQueue(work, None, {}, now=100.0)
    queue.start(dispatch(1, 0))
    work.done(0)
    queue.next()
    assert 100 <= queue.now < 130


@pytest.mark.parametrize("clock", ["none", "lognormal"])
def test_a_clock_changes_no_bit_of_synchronous_rounds(clock, tmp_path):
    plain = run(clock={"name": "none"})
    timed = run(clock={"name": clock})
    assert np.array_equal(plain.models["global"], timed.models["global"])
    assert (timed.tables["rounds"]["sim_s"].null_count == 0) == (clock != "none")


@pytest.mark.parametrize("method", METHODS)
def test_full_buffer_of_equal_devices_is_a_synchronous_run(method, tmp_path):
    """buffer = concurrency = cohort, constant weights, and devices that take equally long for everything."""
    equal = {"name": "constant", "seconds_per_sample": 0.0, "latency_s": 1.0}
    buffered = {"name": "buffered", "buffer": 3, "concurrency": 3}
    sync = run("rounds=3", clock=equal, method=method)
    other = run("rounds=3", clock=equal, schedule=buffered, method=method)
    assert_same_run(sync, other)
    assert set(sync.tables["rounds"]["cohort"].to_pylist()) == {3}


def test_replies_in_the_deadlines_own_second_are_in_time():
    equal = {"name": "constant", "seconds_per_sample": 0.0, "latency_s": 1.0}
    sync = run("rounds=3", clock=equal)
    second = sync.tables["rounds"]["sim_s"].to_pylist()[0]
    quorum = {"name": "quorum", "min_fraction": 0.5, "deadline_s": second}
    assert_same_run(sync, run("rounds=3", clock=equal, schedule=quorum))


def test_schedules_differ_from_each_other(tmp_path):
    found = [run(schedule=schedule) for schedule in SCHEDULES.values()]
    assert len({result.models["global"].tobytes() for result in found}) == len(SCHEDULES)
    waits = {
        name: r.tables["rounds"]["sim_s"].to_pylist()[-1] for name, r in zip(SCHEDULES, found, strict=True)
    }
    assert waits["fedasync"] < waits["quorum"] < waits["sync"]
    assert max(found[-1].tables["rounds"]["staleness"].to_pylist()) > 0
    assert set(found[1].tables["rounds"]["dropped"].to_pylist()) == {1}


@pytest.mark.parametrize(("schedule", "method"), RESUMED)
def test_stopped_and_resumed_is_uninterrupted_with_replies_in_flight(schedule, method, tmp_path):
    assert_resumed_is_whole(recipe_of(method, schedule=SCHEDULES[schedule]), tmp_path, 3, 5)


@pytest.mark.parametrize("schedule", ["quorum", "fedbuff", "fedasync"])
def test_ray_gives_the_bits_of_the_local_engine(schedule, hosts):
    recipe = recipe_of("fedkf", schedule=SCHEDULES[schedule])
    assert_same_run(run_in_process(recipe), hosts.run(recipe, TWO_HOSTS))


def test_every_table_has_simulated_seconds(tmp_path):
    found = run(schedule=SCHEDULES["fedbuff"])
    sim_s = dict(zip(*(found.tables["rounds"][c].to_pylist() for c in ("round", "sim_s")), strict=True))
    assert sorted(sim_s.values()) == list(sim_s.values())
    for name, table in found.tables.items():
        for row in table.to_pylist():
            assert row["sim_s"] == sim_s[row["round"]], name


def test_simulated_seconds_of_a_round_are_its_slowest_clients(tmp_path):
    """All six train on n_k samples of 0.5 s: the round takes 0.5 max n_k; messages cost nothing here."""
    clock = {
        "name": "constant",
        "seconds_per_sample": 0.5,
        "latency_s": 0.0,
        "up_mbit_s": 1e15,
        "down_mbit_s": 1e15,
    }
    words = [f"results.folder={tmp_path / 'a'}", "rounds=2", "sampling.fraction=1.0"]
    found = rayfed_kd.run(recipe_of(clock=clock), words, local=True)
    sizes = prepare(tmp_path / "a" / "config.yaml").setting.partition.sizes
    largest = max(sizes.tolist())
    assert found.tables["rounds"]["sim_s"].to_pylist() == pytest.approx([0.5 * largest, largest])


def test_models_with_batchnorm_stay_finite_when_replies_are_late(tmp_path):
    """DaFKD's generator: differences of running variances would be negative by round 3."""
    options, schedule = {"distill_epochs": 0}, SCHEDULES["fedbuff"]
    found = run("local.batch_size=16", method="dafkd", options=options, schedule=schedule)
    assert max(found.tables["rounds"]["staleness"].to_pylist()) > 0
    assert all(np.isfinite(vector).all() for vector in found.models.values())


def test_older_replies_than_allowed_are_dropped_and_counted(tmp_path):
    schedule = {**SCHEDULES["fedasync"], "max_staleness": 0}
    rounds = run(schedule=schedule).tables["rounds"]
    assert set(rounds["staleness"].to_pylist()) == {0.0}
    assert sum(rounds["dropped"].to_pylist()) > 0


def test_devices_that_are_away_are_not_asked(tmp_path):
    """Clients 0 to 2 are there in the first half of each 100 s, the others in the second."""
    lines = ["client,seconds_per_sample,up_mbit_s,down_mbit_s,from_s,until_s"]
    lines += [f"{k},0.1,1000,1000,{0 if k < 3 else 50},{50 if k < 3 else 100}" for k in range(6)]
    (tmp_path / "trace.csv").write_text("\n".join(lines))
    clock = {"name": "trace", "file": str(tmp_path / "trace.csv")}
    found = run("rounds=20", clock=clock, schedule=SCHEDULES["sync"])
    sent = found.tables["messages"].filter(
        np.array([d == "down" for d in found.tables["messages"]["direction"].to_pylist()])
    )
    starts = [0.0, *found.tables["rounds"]["sim_s"].to_pylist()]
    for row in sent.to_pylist():
        assert (starts[row["round"] - 1] % 100 < 50) == (row["client"] < 3)
    assert found.tables["rounds"]["sim_s"].to_pylist()[-1] > 50


@pytest.mark.parametrize("schedule", ["fedasync", "fedbuff"])
def test_devices_that_come_back_are_asked_at_once(schedule, tmp_path):
    """Client 0 takes at least 300 s and is always there, the others a second from second 10 on."""
    lines = ["client,seconds_per_sample,up_mbit_s,down_mbit_s,from_s,until_s", "0,10,1000,1000,0,1000"]
    lines += [f"{k},0.001,1000,1000,10,1000" for k in range(1, 6)]
    (tmp_path / "trace.csv").write_text("\n".join(lines))
    clock = {"name": "trace", "file": str(tmp_path / "trace.csv")}
    rounds = run("rounds=3", clock=clock, schedule=SCHEDULES[schedule]).tables["rounds"]
    assert all(10 < second < 15 for second in rounds["sim_s"].to_pylist())
    assert set(rounds["cohort"].to_pylist()) == {SCHEDULES[schedule].get("buffer", 1)}


def test_an_update_whose_replies_are_all_bad_ends_the_run():
    """All clients that replace others get the same message, and diverge likewise."""
    changes = {"local": {**RECIPE["local"], "optimizer": {"name": "sgd", "lr": 1e30}}}
    with pytest.raises(RunError, match=r"NaN or infinite .* So were 103 replies before it"):
        run("faults.bad_replies=drop", schedule=SCHEDULES["fedbuff"], **changes)


def test_real_clock_takes_replies_as_they_come(hosts):
    recipe = recipe_of(clock={"name": "real"}, schedule=SCHEDULES["fedasync"])
    with pytest.raises(
        RecipeError, match=r"clock.name = 'real': in this process one client works after another"
    ):
        rayfed_kd.run(recipe, local=True)
    found = hosts.run(recipe, TWO_HOSTS)
    sim_s = found.tables["rounds"]["sim_s"].to_pylist()
    assert sim_s == sorted(sim_s)
    assert len(sim_s) == RECIPE["rounds"]


def test_durable_replies_change_nothing(hosts):
    local = run_in_process(recipe_of("fedkf"), "rounds=3")
    assert_same_run(local, hosts.run(recipe_of("fedkf"), "rounds=3", "faults.durable=true", TWO_HOSTS))
