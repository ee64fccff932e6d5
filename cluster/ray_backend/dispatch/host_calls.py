"""Sends jobs to client actors, and explains why an actor was lost. Only references move here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import ray

from cluster.engine.calls import (
    EvaluationCall,
    PersonalCall,
    StepFacts,
    StepResult,
)
from cluster.engine.summing import summed_results
from cluster.ray_backend.dispatch.jobs import Job
from cluster.ray_backend.handles import Ahead, RayHandle, RowHandle, Rows
from cluster.ray_backend.liveness import memory_hint
from cluster.ray_backend.packing import PackedCalls, unpack_facts
from rayfed_kd.errors import RunError
from rayfed_kd.protocol.summed import GroupSum

# Errors that mean that a process, a machine or data on it was lost: the step may run again elsewhere. Ray's
# OutOfMemoryError and ObjectLostError are no RayActorErrors.
LOST = (
    ray.exceptions.RayActorError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.ObjectLostError,
)


async def call_host(actor: Any, jobs: Sequence[Job], ahead: Ahead) -> list[Any]:
    """Run jobs on a client actor.

    Args:
        actor: the actor's handle.
        jobs: one job of any kind, or several single steps.
        ahead: fetches replies that are on another machine.
    Returns: for each job, a list with one result per call, or its error.
    Raises: what a single job's call raised; Ray's error if the actor was lost.
    """
    # wrap_future throughout: awaiting a reference directly leaks in long loops (ray #45895).
    calls = jobs[0].calls
    if len(jobs) > 1:
        # The number of return values depends on the jobs, so it is told with the call.
        several = actor.several.options(num_returns=2 + len(jobs))
        packed, parts, *states = several.remote(PackedCalls.of([job.calls[0] for job in jobs]))
        facts, rows = unpack_facts(await asyncio.wrap_future(packed.future())), Rows(RayHandle(parts))
        _fetch(ahead, parts, [one for one in facts if isinstance(one, StepFacts)])
        return [
            [StepResult(one, RowHandle(rows, place), RayHandle(state))] if isinstance(one, StepFacts) else one
            for place, (one, state) in enumerate(zip(facts, states, strict=True))
        ]
    if jobs[0].summed:
        kept = 0 if calls[0].replaces is None else len(calls)
        summed = actor.summed.options(num_returns=2 + len(calls) + kept)
        packed, sums, *single = summed.remote(PackedCalls.of(calls), list(jobs[0].summed))
        facts = unpack_facts(await asyncio.wrap_future(packed.future()))
        _fetch(ahead, sums, facts[:1])
        group = GroupSum(RayHandle(sums), [call.facts.client for call in calls])
        handles = list(map(RayHandle, single))
        return [summed_results(facts, group, handles[: len(calls)], handles[len(calls) :])]
    if len(calls) > 1:
        packed, parts, states = actor.steps.remote(PackedCalls.of(calls))
        facts = unpack_facts(await asyncio.wrap_future(packed.future()))
        _fetch(ahead, parts, facts)
        rows, state_rows = Rows(RayHandle(parts)), Rows(RayHandle(states))
        return [
            [
                StepResult(one, RowHandle(rows, place), RowHandle(state_rows, place))
                for place, one in enumerate(facts)
            ]
        ]
    if isinstance(calls[0], EvaluationCall):
        return [[await asyncio.wrap_future(actor.evaluate.remote(calls[0]).future())]]
    if isinstance(calls[0], PersonalCall):
        return [[await asyncio.wrap_future(actor.evaluate_personal.remote(calls[0]).future())]]
    packed, parts, state = actor.step.remote(calls[0])
    one = await asyncio.wrap_future(packed.future())
    _fetch(ahead, parts, [one])
    return [[StepResult(one, RayHandle(parts), RayHandle(state))]]


def _fetch(ahead: Ahead, parts: Any, facts: Sequence[StepFacts]) -> None:
    if facts:
        ahead.fetch(parts, facts[0].node, sum(part.bytes for one in facts for part in one.sizes.values()))


def explained(error: Exception) -> Exception:
    """The error for the user: a RunError inside Ray's wrapper, else the error as it is."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, RunError) else error


def cause_of_loss(error: Exception) -> str:
    """Why a host was lost: out of memory, its machine, or its process. The first line says it in short."""
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return f"was killed when its machine ran out of memory: {error}"
    first, *more = _cause(error).splitlines()
    return "\n".join([first + memory_hint(), *more])


def _cause(error: Exception) -> str:
    if isinstance(error, ray.exceptions.ObjectLostError):
        return f"needed data that was lost with a machine: {error}"
    if isinstance(error, ray.exceptions.ActorUnavailableError):
        return "cannot be reached: its process, its machine or the connection was lost"
    # Ray has no error type of its own for a lost machine; it says so only in the message's text.
    if "node" in str(error).lower() and "died" in str(error).lower():
        return f"lost its machine: {error}"
    return f"died: {error}"
