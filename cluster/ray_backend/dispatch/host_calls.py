"""Sends jobs to client actors, and explains why an actor was lost. Only references move here."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from typing import Any

import ray

from rayfed_kd.cluster.engine.calls import EvaluationCall, PersonalCall, StepFacts, StepResult
from rayfed_kd.cluster.engine.running import cut
from rayfed_kd.cluster.ray_backend.dispatch.jobs import Job
from rayfed_kd.cluster.ray_backend.handles import Ahead, RayHandle, rows_of
from rayfed_kd.cluster.ray_backend.liveness import memory_hint
from rayfed_kd.cluster.ray_backend.packing import PackedCalls
from rayfed_kd.errors import RayfedError, shortened
from rayfed_kd.protocol.summed import GroupSum

# Errors that mean that a process, a machine or data on it was lost: the step may run again elsewhere. Ray's
# OutOfMemoryError and ObjectLostError are no RayActorErrors.
LOST = (
    ray.exceptions.RayActorError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.ObjectLostError,
)
LONGEST_NAME = 80


async def call_host(actor: Any, jobs: Sequence[Job], ahead: Ahead) -> list[Any]:
    """Run jobs on a client actor.

    Args:
        actor: the actor's handle.
        jobs: one job of any kind, or several single steps.
        ahead: fetches replies that are on another machine.
    Returns: for each job, a list with one result per call, or its error.
    Raises: what a single job's call raised; Ray's error if the actor was lost.
    """
    first = jobs[0].calls[0]
    if isinstance(first, EvaluationCall | PersonalCall):
        return [[await _answer(actor.evaluate.options(name=str(jobs[0])).remote(first))]]
    calls, in_sums = [call for job in jobs for call in job.calls], bool(jobs[0].summed_sizes)
    sizes = list(jobs[0].summed_sizes) or [len(job.calls) for job in jobs]
    # The number of return values depends on the jobs. A group's name has all of its clients.
    name = shortened(named(jobs), LONGEST_NAME)
    run = actor.run.options(num_returns=2 + len(sizes), name=name)
    packed, parts, *state_refs = run.remote(PackedCalls.of(calls), sizes, in_sums)
    facts = pickle.loads(await _answer(packed))
    done = [step for step in facts if isinstance(step, StepFacts)]
    if done:
        # Sums are about as large as one reply.
        counted = done[:1] if in_sums else done
        ahead.fetch(parts, done[0].node, sum(part.bytes for step in counted for part in step.sizes.values()))
    states = [state for ref, size in zip(state_refs, sizes, strict=True) for state in rows_of(ref, size)]
    if in_sums:
        group = GroupSum(RayHandle(parts), [call.facts.client for call in calls])
        return [[StepResult(step, group, state) for step, state in zip(facts, states, strict=True)]]
    replies = rows_of(parts, len(calls))
    results = [
        StepResult(step, reply, state) if isinstance(step, StepFacts) else step
        for step, reply, state in zip(facts, replies, states, strict=True)
    ]
    # The error of a group stands in place of each of its results.
    return [group[0] if isinstance(group[0], Exception) else group for group in cut(results, sizes)]


async def _answer(ref: Any) -> Any:
    # Awaiting a reference directly leaks in long loops (ray #45895).
    return await asyncio.wrap_future(ref.future())


def named(jobs: Sequence[Job]) -> str:
    """What Ray's lists call jobs that cross together: "round 5, client 7, client_update and 2 more"."""
    return f"{jobs[0]}" + (f" and {len(jobs) - 1} more" if len(jobs) > 1 else "")


def explained(error: Exception) -> Exception:
    """The error for the user: one of ours inside Ray's wrapper, else the error as it is."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, RayfedError) else error


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
