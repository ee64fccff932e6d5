"""The engine on Ray: which call goes to which client actor, when, with which others, and what if one is lost.

Its event loop only moves references. Vectors are never resolved here, but where they are used.
"""

from __future__ import annotations

import asyncio
import bisect
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np
import ray

from cluster.engine.calls import (
    NO_STATE,
    EvaluationCall,
    EvaluationResult,
    Held,
    NewProcessError,
    PersonalCall,
    StepCall,
    StepFacts,
    StepResult,
)
from cluster.ray_backend.handles import Enclosed, RayHandle, RowHandle, Rows
from cluster.ray_backend.packing import PackedCalls, unpack_facts
from cluster.ray_backend.placement import Plan
from cluster.server.simulation import StoppedError
from rayfed_kd.errors import RunError
from rayfed_kd.protocol import Array, Handle
from rayfed_kd.recipe.schema import FaultsRecipe

LOST = (
    ray.exceptions.RayActorError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.ObjectLostError,
)
POLL_S, RESTART_S = 0.5, 300.0
SMALL = 32 * 1024  # bytes of a message that goes with every call
LEAST_S, MOST_S = 0.005, 0.05  # work that goes to a host in one call, if steps are short


@dataclass(order=True)
class _Job:
    """A call that waits for a host: longest first, so that no host is left with a long one at the end."""

    priority: tuple[float, int]
    call: Any = field(compare=False)
    future: Future[Any] = field(compare=False)
    lost: int = field(default=0, compare=False)  # how often its host was

    @property
    def step(self) -> StepCall | None:
        """The step that it is; None for groups and evaluations."""
        return self.call if isinstance(self.call, StepCall) else None


class RayEngine:
    """Runs calls on client actors. `submit` and `evaluate` may be called from any thread.

    Args:
        actors: the client actors' handles, not built yet.
        blueprint: a reference to what they are built from.
        plan: where clients may run. Shared models are evaluated anywhere.
        sizes: [K] training samples, to start long steps first.
        loop: the event loop that waits for references.
        faults: how often a step whose host was lost is run again, and how long a step may take.
        max_inflight: calls at a time that all actors have together; None: as many as they take.
        on_load: told how many calls they have whenever that changes.
        tell: called with a line when a host was lost.
    """

    def __init__(
        self,
        actors: Sequence[Any],
        blueprint: Any,
        plan: Plan,
        sizes: Sequence[int],
        loop: asyncio.AbstractEventLoop,
        *,
        faults: FaultsRecipe,
        max_inflight: int | None = None,
        on_load: Callable[[int], None] = lambda calls: None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._faults, self._tell = faults, tell
        self._max_inflight, self._on_load = max_inflight or math.inf, on_load
        self._actors, self._blueprint, self._plan = list(actors), blueprint, plan
        self._pinned, self._sizes, self._loop = plan.pinned, sizes, loop
        self._every = tuple(range(len(actors)))
        self._hosts = {client: one.hosts for one in plan.classes for client in one.clients}
        self._load = [0] * len(actors)
        self._waiting: list[_Job] = []
        self._open: dict[Future[Any], Any] = {}
        self._away = set(self._every)  # hosts that are not built: new ones, and lost ones
        self._new = set(self._every)  # those that never were
        self._gone: dict[int, str] = {}  # those that never will, and why
        self._cancelled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        self._fault: Exception | None = None  # why no host can be built
        self._pace: dict[str, float] = {}  # seconds a sample of each step, at last
        for host in self._every:
            loop.call_soon_threadsafe(self._spawn, self._build(host, "never started"))

    def publish(self, arrays: Mapping[str, Array]) -> Handle:
        """One copy in the object store, whoever reads; small arrays go with the calls."""
        plain = all(isinstance(array, np.ndarray) for array in arrays.values())  # no state of a checkpoint
        if plain and sum(array.nbytes for array in arrays.values()) <= SMALL:
            return Enclosed(uuid4().hex, {name: array.copy() for name, array in arrays.items()})
        return RayHandle(ray.put(dict(arrays)))

    def submit(self, call: StepCall) -> Future[StepResult]:
        """Queues a step."""
        return self._queue(call, -float(self._sizes[call.facts.client]))

    def submit_together(self, calls: Sequence[StepCall]) -> Future[list[StepResult]]:
        """Queues a group's steps."""
        return self._queue(_Group(tuple(calls)), -float(sum(self._sizes[c.facts.client] for c in calls)))

    @property
    def hosts(self) -> int:
        """How many client actors there are."""
        return len(self._actors)

    def evaluate(self, call: EvaluationCall) -> Future[EvaluationResult]:
        """Queues an evaluation."""
        return self._queue(call, -float(call.stop - call.start))

    def evaluate_personal(self, call: PersonalCall) -> Future[int]:
        """Queues an evaluation of a client's own model."""
        return self._queue(call, -float(self._sizes[call.client]))

    def kept(self, result: StepResult) -> StepResult:
        """The result with parts and state copied into the object store of the server's machine."""
        parts, state = self.publish(result.parts.resolve()), result.state
        if result.facts.keeps_state:
            state = RayHandle(ray.put({**state.resolve()}))
        return StepResult(result.facts, parts, state)

    def cancel(self) -> None:
        """Ends all steps: each, open or still to come, raises StoppedError where it is waited for.

        Evaluations that are under way go on: a round that is over may still be written down.
        """
        self._cancelled = True
        for future, call in list(self._open.items()):
            if not isinstance(call, EvaluationCall | PersonalCall):
                _stop(future)

    def _queue(self, call: Any, priority: float) -> Future[Any]:
        future: Future[Any] = Future()
        self._open[future] = call
        if self._cancelled:
            _stop(future)
            return future
        self._count += 1
        self._loop.call_soon_threadsafe(self._enqueue, _Job((priority, self._count), call, future))
        return future

    def _enqueue(self, job: _Job) -> None:
        bisect.insort(self._waiting, job)
        self._refuse_hopeless()
        self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Starts what can start. While much waits, a host has its next call before the last one ends."""
        while self._waiting:
            found = self._startable()
            if found is None:
                return
            place, host = found
            job = self._waiting.pop(place)
            if job.future.done():  # given up or stopped before it began
                self._open.pop(job.future, None)
                continue
            self._load[host] += 1
            self._on_load(sum(self._load))
            self._spawn(self._run(host, [job, *self._more(host, job)]))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _startable(self) -> tuple[int, int] | None:
        """The place of the first job that can start, and the host for it."""
        if sum(self._load) >= self._max_inflight:
            return None
        ahead = self._faults.step_timeout_s is None  # a call's time begins when it is sent
        depth = 2 if ahead and len(self._waiting) > len(self._actors) else 1
        full = set()
        for place, job in enumerate(self._waiting):
            client = _whose(job.call)
            if client is not None and self._pinned:
                if client not in self._away:
                    return place, client  # its state is there
                if client in self._new:  # it will be, in a moment
                    continue
            hosts = self._allowed(job.call)
            if hosts in full:
                continue
            there = [host for host in hosts if host not in self._away]
            host = min(there, key=self._load.__getitem__) if there else None
            if host is not None and self._load[host] < depth:
                return place, host
            if not self._hosts and not self._pinned:
                return None
            full.add(hosts)
        return None

    def _allowed(self, call: Any) -> tuple[int, ...]:
        """The hosts that may run a call; any for a shared model's evaluation."""
        client = _whose(call)
        return self._every if client is None else self._hosts.get(client, self._every)

    def _more(self, host: int, first: _Job) -> list[_Job]:
        """Short steps that go along with a first one: a call of Ray's costs more than each of them.

        Half of what waits is left for others, so that hosts end at about the same time. A job whose host was
        lost goes alone: it may be why.
        """
        found: list[_Job] = []
        most = math.ceil(len(self._waiting) / (2 * len(self._actors)))
        if self._pinned or self._max_inflight < math.inf or first.step is None or first.lost:
            return found
        work_s = self._expected_s(first.step)
        for job in self._waiting:
            if work_s >= MOST_S or (len(found) >= most and work_s >= LEAST_S):
                break
            if job.step is None or job.lost or job.future.done():
                continue
            if host in self._allowed(job.call):
                work_s += self._expected_s(job.step)
                found.append(job)
        if found:
            taken = {id(job) for job in found}
            self._waiting = [job for job in self._waiting if id(job) not in taken]
        return found

    def _expected_s(self, call: StepCall) -> float:
        """How long a step will take, as others did; for ever, if none did yet."""
        pace = self._pace.get(call.step)
        return math.inf if pace is None else pace * self._sizes[call.facts.client]

    async def _run(self, host: int, jobs: Sequence[_Job]) -> None:
        patience = self._patience(jobs)
        try:
            outcomes = await asyncio.wait_for(self._called(host, [job.call for job in jobs]), patience)
            for job, outcome in zip(jobs, outcomes, strict=True):
                self._end(job, outcome)
        except TimeoutError:
            ray.kill(self._actors[host], no_restart=False)
            limit = f"took longer than faults.step_timeout_s = {self._faults.step_timeout_s:g}"
            if isinstance(jobs[0].call, _Group):
                limit += f" for each of {len(jobs[0].call.calls)} clients"
            self._again(host, jobs, limit)
        except (*LOST, NewProcessError) as error:
            self._again(host, jobs, _cause(error))
        except Exception as error:  # handed on to the thread that waits, whatever it is
            for job in jobs:
                self._end(job, _explained(error))
        finally:
            self._load[host] -= 1
            self._on_load(sum(self._load))
            self._pump()

    def _end(self, job: _Job, outcome: Any) -> None:
        """Hands on what came: a result, or an error."""
        self._open.pop(job.future, None)
        if isinstance(outcome, StepResult) and outcome.facts.alone is None and job.step is not None:
            size = self._sizes[job.step.facts.client]
            self._pace[job.step.step] = outcome.facts.seconds / max(size, 1)
        if job.future.done():  # given up or stopped
            return
        if isinstance(outcome, Exception):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)

    def _again(self, host: int, jobs: Sequence[_Job], lost: str) -> None:
        """A host was lost; Ray restarts it. Calls bring all that they need: another host may take them."""
        if host not in self._away:
            self._away.add(host)
            self._spawn(self._build(host, lost))
        steps = f"{jobs[0].call}" + (f" and {len(jobs) - 1} more" if len(jobs) > 1 else "")
        self._tell(
            f"host {host} {lost.splitlines()[0]}; it is restarted, and what it had runs again: {steps}"
        )
        for job in jobs:
            job.lost += 1
            if job.lost <= self._faults.max_retries:
                bisect.insort(self._waiting, job)
                continue
            text = (
                f"{job.call}: its host was lost {_times(job.lost)} (faults.max_retries = "
                f"{self._faults.max_retries}), at last host {host}, because it {lost}"
            )
            self._end(job, RunError(text))

    async def _build(self, host: int, lost: str) -> None:
        """Builds a new or restarted host, as soon as it answers; until then no call is sent to it."""
        for _ in range(int(RESTART_S / POLL_S)):
            try:
                built = self._actors[host].build.remote(self._blueprint, host, self._plan)
                await asyncio.wrap_future(built.future())
                self._away.discard(host)
                self._new.discard(host)
                self._pump()
                return
            except ray.exceptions.ActorUnavailableError:  # it starts, or no machine has room for it now
                await asyncio.sleep(POLL_S)
            except LOST as error:
                lost = _cause(error)
                break
            except Exception as error:  # what it raised: other code there, no GPU
                self._fault = _explained(error)
                break
        self._new.discard(host)
        self._gone[host] = lost
        self._refuse_hopeless()
        self._pump()

    def _refuse_hopeless(self) -> None:
        """Ends the calls for which no host is there, and none may come back."""
        if not self._gone:
            return
        for job in list(self._waiting):
            hosts = self._allowed(job.call)
            if self._fault is None and not all(host in self._gone for host in hosts):
                continue
            self._waiting.remove(job)
            text = f"{job.call}: no host came back for it; host {hosts[-1]} {self._gone.get(hosts[-1])}"
            self._end(job, self._fault or RunError(text))

    def _patience(self, jobs: Sequence[_Job]) -> float | None:
        """Seconds that a call may take: a group's its clients' together, several short steps those of one."""
        one, call = self._faults.step_timeout_s, jobs[0].call
        return one * len(call.calls) if one is not None and isinstance(call, _Group) else one

    async def _called(self, host: int, calls: Sequence[Any]) -> Sequence[Any]:
        """What came of each call; more than one are steps."""
        if len(calls) == 1:
            return [await self._called_alone(host, calls[0])]
        several = self._actors[host].several.options(num_returns=2 + len(calls))
        known, parts, *states = several.remote(PackedCalls.of(calls))
        found, rows = unpack_facts(await asyncio.wrap_future(known.future())), Rows(RayHandle(parts))
        return [
            _result(one, RowHandle(rows, place), RayHandle(state)) if isinstance(one, StepFacts) else one
            for place, (one, state) in enumerate(zip(found, states, strict=True))
        ]

    async def _called_alone(self, host: int, call: Any) -> Any:
        actor = self._actors[host]
        if isinstance(call, _Group):
            known, parts, states = actor.steps.remote(PackedCalls.of(call.calls))
            facts = unpack_facts(await asyncio.wrap_future(known.future()))
            return _results(facts, parts, states)
        if isinstance(call, EvaluationCall):
            return await asyncio.wrap_future(actor.evaluate.remote(call).future())
        if isinstance(call, PersonalCall):
            return await asyncio.wrap_future(actor.evaluate_personal.remote(call).future())
        facts, parts, state = actor.step.remote(call)
        # wrap_future: awaiting a reference directly leaks in long loops (ray #45895)
        known = await asyncio.wrap_future(facts.future())
        return _result(known, RayHandle(parts), RayHandle(state))


@dataclass(frozen=True)
class _Group:
    """Steps that run together."""

    calls: tuple[StepCall, ...]

    def __str__(self) -> str:
        clients = ", ".join(str(call.facts.client) for call in self.calls)
        return f"round {self.calls[0].facts.round}, clients {clients}, {self.calls[0].step}"


def _results(facts: Sequence[StepFacts], parts: Any, states: Any) -> list[StepResult]:
    rows, kept = Rows(RayHandle(parts)), Rows(RayHandle(states))
    return [
        _result(known, RowHandle(rows, place), RowHandle(kept, place)) for place, known in enumerate(facts)
    ]


def _result(known: StepFacts, parts: Handle, state: Handle) -> StepResult:
    """A client without a state needs no reference, and no checkpoint has to fetch that there is none."""
    return StepResult(known, parts, state if known.keeps_state else Held(NO_STATE))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _whose(call: Any) -> int | None:
    """The client that a call is about, of a group the first; None for a shared model's evaluation."""
    if isinstance(call, EvaluationCall):
        return None
    if isinstance(call, _Group):
        return call.calls[0].facts.client
    client: int = call.client if isinstance(call, PersonalCall) else call.facts.client
    return client


def _stop(future: Future[Any]) -> None:
    if not future.done():
        future.set_exception(StoppedError("stopped in the middle of a round"))


def _explained(error: Exception) -> Exception:
    """What a user should read: a method's own error as it is."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, RunError) else error


def _cause(error: Exception) -> str:
    """Why a host was lost: out of memory, its machine, or its process."""
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return f"was killed when its machine ran out of memory: {error}"
    if isinstance(error, ray.exceptions.ObjectLostError):
        return f"needed data that was lost with a machine: {error}"
    if "node" in str(error).lower() and "died" in str(error).lower():
        return f"lost its machine: {error}"
    return f"died: {error}"
