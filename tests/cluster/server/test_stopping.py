"""A run that is asked to end, at whatever moment, ends."""

import asyncio

import pytest

from rayfed_kd.cluster.engine.calls import Held, StepCall
from rayfed_kd.cluster.ray_backend.dispatch.jobs import Job
from rayfed_kd.cluster.ray_backend.engine import RayEngine
from rayfed_kd.cluster.ray_backend.placement import Plan
from rayfed_kd.cluster.server.simulation import StoppedError
from rayfed_kd.protocol import DispatchFacts
from rayfed_kd.recipe.sections.placement import ResourceRecipe
from rayfed_kd.recipe.sections.safety import FaultsRecipe

STEP = StepCall("step", DispatchFacts(0, 1, 1), Held(), {}, None, 0)


def empty_engine(tell=lambda line: None):
    plan = Plan(0, False, 1, ResourceRecipe(), ResourceRecipe())
    return RayEngine([], None, plan, [1], asyncio.new_event_loop(), faults=FaultsRecipe(), tell=tell)


def test_call_after_the_stop_is_refused_at_once():
    """A round in progress goes on submitting: its next call must not reach a host, nor be waited for."""
    engine = empty_engine()
    engine.cancel()
    with pytest.raises(StoppedError):
        engine.submit([STEP])[0].result(timeout=1)


def test_open_call_ends_with_the_stop():
    engine = empty_engine()
    (waiting,) = engine.submit([STEP])
    assert not waiting.done()
    engine.cancel()
    with pytest.raises(StoppedError):
        waiting.result(timeout=1)


def test_host_that_is_ended_after_the_last_round_is_neither_told_of_nor_built_again():
    """A schedule without rounds leaves steps under way, whose host then goes."""
    told = []
    engine = empty_engine(told.append)
    (waiting,) = engine.submit([STEP])
    engine.close()
    with pytest.raises(StoppedError):
        waiting.result(timeout=1)
    engine._again(0, [Job(1, [STEP], [waiting], 1)], "died")
    assert not told and not engine._clients.building
