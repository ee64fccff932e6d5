"""What is known of how long steps take, and the order in which they start."""

import math
from concurrent.futures import Future

import pytest

from rayfed_kd.cluster.engine.calls import EvaluationCall, Held, StepCall
from rayfed_kd.cluster.ray_backend.dispatch.client_hosts import ClientHosts
from rayfed_kd.cluster.ray_backend.dispatch.job_queue import JobQueue
from rayfed_kd.cluster.ray_backend.dispatch.jobs import Job
from rayfed_kd.cluster.ray_backend.placement import Plan
from rayfed_kd.protocol import DispatchFacts
from rayfed_kd.recipe.sections.placement import ResourceRecipe

SIZES = [100, 200, 300, 10, 0]
KINDS = ["cnn", "cnn", "cnn", "resnet", "cnn"]


def step(client, name="client_update"):
    return StepCall(name, DispatchFacts(client, 1, 1), Held({}), {}, None, -1, 1)


def job(number, client):
    return Job(number, [step(client)], [Future()], SIZES[client])


def queue(sizes=SIZES, kinds=(), drop=lambda job: None):
    hosts = ClientHosts(range(1), None, Plan(1, False, 1, ResourceRecipe(), ResourceRecipe()), print)
    hosts.building.clear()
    return JobQueue(hosts, sizes, kinds, drop), hosts


def started(waiting, hosts):
    """The clients of single jobs in the order in which one host gets them."""
    order = []
    while (one := waiting.next()) is not None:
        order += [job.client for job in one[1]]
        hosts.load[one[0]] = 0
    return order


def test_a_step_takes_as_long_a_sample_as_the_last_one_of_its_architecture():
    waiting, _ = queue(kinds=KINDS)
    assert waiting.expected_s(step(0)) == math.inf
    waiting.learn(step(0), 2.0)
    waiting.learn(step(1), 2.0)
    assert waiting.expected_s(step(2)) == pytest.approx(300 * 0.01)
    assert waiting.expected_s(step(4)) == pytest.approx(0.01)  # an empty client's step is not free
    assert waiting.expected_s(step(3)) == math.inf
    waiting.learn(step(3), 4.0)
    assert waiting.expected_s(step(3)) == pytest.approx(4.0)
    assert waiting.expected_s(step(0, "another_step")) == math.inf


def test_first_steps_go_by_samples_alone_and_each_alone():
    waiting, hosts = queue()
    for number, client in enumerate([3, 0, 2, 1]):
        waiting.add(job(number, client))
    _, jobs = waiting.next()
    assert [one.client for one in jobs] == [2]
    hosts.load[0] = 0
    assert started(waiting, hosts) == [1, 0, 3]


def test_waiting_steps_are_put_in_order_again_as_soon_as_an_architecture_is_known():
    """The ResNet's ten samples take longer than the others' hundreds."""
    waiting, hosts = queue(kinds=KINDS)
    for number, client in enumerate([3, 0, 2, 1]):
        waiting.add(job(number, client))
    assert [one.client for one in waiting.jobs] == [2, 1, 0, 3]
    waiting.learn(step(2), 3.0)
    assert [one.client for one in waiting.jobs] == [3, 2, 1, 0]  # what is not known may be the longest
    waiting.learn(step(3), 1.5)
    assert started(waiting, hosts) == [2, 1, 3, 0]


def test_equal_steps_start_in_the_order_of_submission_and_evaluations_first():
    waiting, hosts = queue([5, 5, 5])
    pending = [Job(n, [step(client)], [Future()], 5) for n, client in ((3, 0), (1, 2), (2, 1))]
    shared = Job(4, [EvaluationCall(Held({}), "student", "model", "official", 0, 100)], [Future()], 100)
    for one in (*pending, shared):
        waiting.add(one)
    assert started(waiting, hosts) == [None, 2, 1, 0]


def test_what_nobody_waits_for_is_dropped():
    dropped = []
    waiting, _ = queue(drop=dropped.append)
    given_up = job(1, 2)
    given_up.futures[0].cancel()
    waiting.add(given_up)
    waiting.add(job(2, 0))
    _, jobs = waiting.next()
    assert (dropped, jobs[0].client, len(waiting.jobs)) == ([given_up], 0, 0)
