"""What is known of how long steps take, and the order in which they start."""

import math
import random
from concurrent.futures import Future

import pytest

from rayfed_kd.cluster.engine.calls import EvaluationCall, Held, StepCall
from rayfed_kd.cluster.ray_backend.dispatch.client_hosts import ClientHosts
from rayfed_kd.cluster.ray_backend.dispatch.job_queue import JobQueue
from rayfed_kd.cluster.ray_backend.dispatch.jobs import Job, Pace
from rayfed_kd.cluster.ray_backend.placement import Plan
from rayfed_kd.protocol import DispatchFacts
from rayfed_kd.recipe.sections.placement import ResourceRecipe

SIZES = [100, 200, 300, 10, 0]
KINDS = ["cnn", "cnn", "cnn", "resnet", "cnn"]


def step(client, name="client_update"):
    return StepCall(name, DispatchFacts(client, 1, 1), Held({}), {}, None, -1, 1)


def job(number, client):
    return Job(number, [step(client)], [Future()], SIZES[client])


def queue(pace, hosts=1, drop=lambda job: None):
    found = ClientHosts(range(hosts), None, Plan(hosts, False, 1, ResourceRecipe(), ResourceRecipe()))
    found.building.clear()
    return JobQueue(found, pace, drop), found


def started(waiting, found):
    """The clients of single jobs in the order in which one host gets them."""
    order = []
    while (one := waiting.next()) is not None:
        order += [job.client for job in one[1]]
        found.load[one[0]] = 0
    return order


def test_first_steps_go_by_samples_alone_and_each_alone():
    pace = Pace(SIZES, KINDS)
    assert [pace.work(step(client)) for client in range(5)] == [100, 200, 300, 10, 1]
    assert pace.expected_s(step(0)) == math.inf


def test_a_client_that_is_known_is_taken_for_what_it_took_and_others_for_their_architecture():
    pace = Pace(SIZES, KINDS)
    assert pace.note(0, step(0), 2.0)  # 0.02 s a sample
    assert not pace.note(0, step(1), 2.0)  # 0.01 s a sample: the architecture's latest
    assert pace.expected_s(step(0)) == 2.0
    assert pace.expected_s(step(2)) == pytest.approx(300 * 0.01)
    assert pace.expected_s(step(4)) == pytest.approx(0.01)  # an empty client's step is not free
    assert pace.expected_s(step(3)) == pytest.approx(10 * 0.01)  # the mean of the known architectures
    assert pace.note(0, step(3), 4.0)
    assert pace.expected_s(step(3)) == 4.0
    assert pace.expected_s(step(0, "another_step")) == math.inf


def test_slow_host_is_told_from_slow_clients():
    """Two hosts, of which the second takes three times as long; every client is seen on both."""
    rng, pace = random.Random(0), Pace([10] * 8)
    own_s = [1.0 + client for client in range(8)]
    for _ in range(400):
        client, host = rng.randrange(8), rng.randrange(2)
        pace.note(host, step(client), own_s[client] * (3.0 if host else 1.0))
    found = [pace.expected_s(step(client)) for client in range(8)]
    assert [one / found[0] for one in found] == pytest.approx(own_s, rel=0.25)
    assert pace.slowness(1) - pace.slowness(0) == pytest.approx(4 * math.log2(3), abs=1.5)


def test_waiting_steps_are_put_in_order_again_as_soon_as_an_architecture_is_known():
    """The ResNet's ten samples take longer than the others' hundreds."""
    pace = Pace(SIZES, KINDS)
    waiting, found = queue(pace)
    for number, client in enumerate([3, 0, 2, 1]):
        waiting.add(job(number, client))
    assert [one.client for one in waiting] == [2, 1, 0, 3]
    pace.note(0, step(2), 3.0)
    pace.note(0, step(3), 9.0)
    waiting.sort()
    assert [one.client for one in waiting] == [3, 2, 1, 0]
    assert started(waiting, found) == [3, 2, 1, 0]


def test_equal_steps_start_in_the_order_of_submission_and_evaluations_first():
    waiting, found = queue(Pace([5, 5, 5]))
    pending = [Job(n, [step(client)], [Future()], 5) for n, client in ((3, 0), (1, 2), (2, 1))]
    shared = Job(4, [EvaluationCall(Held({}), "student", "model", "official", 0, 100)], [Future()], 100)
    for one in (*pending, shared):
        waiting.add(one)
    assert started(waiting, found) == [None, 2, 1, 0]


def test_longest_step_goes_to_the_fastest_of_the_idle_hosts():
    pace = Pace([10, 20])
    for client, host, seconds in ((0, 0, 4.0), (0, 1, 1.0), (0, 1, 1.0), (1, 1, 2.0)):
        pace.note(host, step(client), seconds)
    waiting, _ = queue(pace, hosts=2)
    waiting.add(Job(1, [step(0)], [Future()], 10))
    waiting.add(Job(2, [step(1)], [Future()], 20))
    host, jobs = waiting.next()
    assert (host, jobs[0].client) == (1, 1)


def test_what_nobody_waits_for_is_dropped():
    dropped = []
    waiting, _ = queue(Pace(SIZES), drop=dropped.append)
    given_up = job(1, 2)
    given_up.futures[0].cancel()
    waiting.add(given_up)
    waiting.add(job(2, 0))
    _, jobs = waiting.next()
    assert (dropped, jobs[0].client, len(waiting)) == ([given_up], 0, 0)
