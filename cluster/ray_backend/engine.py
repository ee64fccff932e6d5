"""The engine on Ray: it schedules calls on client actors, and runs them again if an actor is lost.

Its event loop only moves references. Vectors are resolved where they are used, never here.
"""

from __future__ import annotations

import asyncio
import bisect
import math
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any
from uuid import uuid4

import numpy as np
import ray

from cluster.engine.calls import (
    EvaluationCall,
    EvaluationResult,
    NewProcessError,
    PersonalCall,
    PersonalResult,
    StepCall,
    StepResult,
)
from cluster.ray_backend.client_hosts import ClientHosts
from cluster.ray_backend.handles import Ahead, Enclosed, RayHandle
from cluster.ray_backend.host_calls import LOST, call_host, cause_of_loss, explained
from cluster.ray_backend.jobs import Job, Pace, short_steps
from cluster.ray_backend.patience import Patience
from cluster.ray_backend.placement import Plan
from cluster.server.simulation import StoppedError
from rayfed_kd.errors import RunError
from rayfed_kd.protocol import Array, Handle
from rayfed_kd.protocol.summed import GroupSum
from rayfed_kd.recipe.sections.safety import FaultsRecipe

# Most bytes of a message that travels inside every call instead of in the object store. Measured with Ray
# 2.60: a call with an argument of 10 to 80 kB takes two thirds of the time of one with a reference to it.
SMALL = 32 * 1024
STOPPED = "stopped in the middle of a round"
# Seconds of work that short steps are combined to, in one call to a host: a call itself costs 1 to 4 ms.
LEAST_S, MOST_S = 0.005, 0.05


class RayEngine:
    """Runs calls on client actors.

    One thread beside the event loop's, that of the rounds, submits and evaluates; `cancel` may be called from
    any thread. All other work is done in the event loop, so that it needs no locks.

    Args:
        actors: the client actors' handles, not built yet.
        blueprint: a reference to the blueprint that they are built from.
        plan: which client may run on which host. Shared models are evaluated on any host.
        sizes: [K] training samples of each client: steps with more samples start first.
        loop: the event loop that waits for references.
        faults: how often a step whose host was lost is run again, and how long a step may take.
        max_inflight: most calls that all actors have together at a time; None: no limit.
        on_load: called with the number of calls that the actors have whenever it changes.
        tell: called with a line when a host was lost.
    Attributes: `started` is done as soon as the first host is built, or cannot be.
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
        self._faults, self._tell, self._loop = faults, tell, loop
        self._max_inflight, self._on_load = max_inflight or math.inf, on_load
        self._clients, self._pace = ClientHosts(actors, blueprint, plan, tell), Pace(sizes)
        self._patience = Patience(faults.step_timeout_s, loop, len(actors))
        self._sizes = sizes
        # Filled by other threads, emptied by the event loop; a deque's append and popleft are thread-safe.
        self._submitted: deque[Job] = deque()
        self._waiting: list[Job] = []
        self._open: dict[int, Job] = {}  # by number
        self.started: Future[None] = Future()
        self._cancelled = self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()  # asyncio itself keeps only weak references to tasks
        self._count, self._ahead = 0, Ahead()
        # The constructor may run in another thread than the loop, where a task cannot be created directly.
        for host in range(len(actors)):
            loop.call_soon_threadsafe(self._begin_build, host, "never started")

    def publish(self, arrays: Mapping[str, Array]) -> Handle:
        """Put arrays into the object store once; small arrays travel with the calls instead."""
        # A client's state from a checkpoint is no array, and always goes into the store.
        plain = all(isinstance(array, np.ndarray) for array in arrays.values())
        if plain and sum(array.nbytes for array in arrays.values()) <= SMALL:
            # Copies: Ray serializes a call when the event loop sends it, and the server goes on meanwhile.
            return Enclosed(uuid4().hex, {name: array.copy() for name, array in arrays.items()})
        return RayHandle(ray.put(dict(arrays)))

    def submit(self, calls: Sequence[Any]) -> list[Future[Any]]:
        """Queue a step, a group's steps, or one evaluation.

        Args:
            calls: one call of any kind, or the steps of a group; they go to one host.
        Returns: one future per call.
        """
        return self._submitted_job(calls)

    def submit_summed(self, groups: Sequence[Sequence[StepCall]]) -> list[Future[StepResult]]:
        """Queue the steps of groups, which go to one host together; it sums their replies."""
        calls = [call for group in groups for call in group]
        return self._submitted_job(calls, [len(group) for group in groups])

    def _submitted_job(self, calls: Sequence[Any], summed: Sequence[int] = ()) -> list[Future[Any]]:
        self._count += 1
        futures: list[Future[Any]] = [Future() for _ in calls]
        work = -float(sum(map(self._samples, calls)))
        job = Job((work, self._count), calls, futures, summed=summed)
        # Registered before the flag is read. `cancel`, in another thread, sets the flag before it reads the
        # open jobs: so one of the two ends this job in any case.
        self._open[self._count] = job
        if self._cancelled:
            self._end(job, StoppedError(STOPPED))
        else:
            self._submitted.append(job)
            self._loop.call_soon_threadsafe(self._pump)
        return futures

    @property
    def hosts(self) -> int:
        """Number of client actors."""
        return len(self._clients)

    def evaluate(self, call: EvaluationCall) -> Future[EvaluationResult]:
        """Queue the evaluation of a shared model."""
        return self.submit([call])[0]

    def evaluate_personal(self, call: PersonalCall) -> Future[PersonalResult]:
        """Queue the evaluation of a client's own model."""
        return self.submit([call])[0]

    def durable(self, result: StepResult) -> StepResult:
        """Copy a result's parts and state into the object store of the server's machine."""
        parts, state = result.parts, result.state
        parts = parts.copied(self.publish) if isinstance(parts, GroupSum) else self.publish(parts.resolve())
        if result.facts.keeps_state:
            state = RayHandle(ray.put({**state.resolve()}))
        return StepResult(result.facts, parts, state)

    def cancel(self) -> None:
        """End all steps: the futures of open and of later ones raise StoppedError.

        Started evaluations go on, so that the last finished round can still be recorded.
        """
        self._cancelled = True
        # A copy of the jobs, as the event loop and `submit` change the mapping meanwhile.
        for job in list(self._open.values()):
            if not isinstance(job.calls[0], EvaluationCall | PersonalCall):
                self._end(job, StoppedError(STOPPED))

    def close(self) -> None:
        """End the client actors after the last round: what they still do is of no use."""
        self._closed = True
        self.cancel()
        self._clients.end()

    def _samples(self, call: Any) -> int:
        """Number of samples that a call processes: calls with the most start first."""
        if isinstance(call, EvaluationCall):
            return call.stop - call.start
        return self._sizes[call.client if isinstance(call, PersonalCall) else call.facts.client]

    def _pump(self) -> None:
        """Start all jobs that can start. While many wait, a host gets its next call before the last ends."""
        while self._submitted:
            bisect.insort(self._waiting, self._submitted.popleft())
        self._refuse_hopeless()
        hosts = self._clients
        while self._waiting and (startable := self._startable()) is not None:
            place, host = startable
            job = self._waiting.pop(place)
            if job.done:  # given up or stopped before it was sent
                self._open.pop(job.priority[1], None)
                continue
            # Here, not in the task, which starts later: the next job must see this call.
            hosts.load[host] += 1
            self._on_load(sum(hosts.load))
            self._spawn(self._run(host, [job, *self._short_steps(host, job)]))

    def _short_steps(self, host: int, first: Job) -> list[Job]:
        """Waiting short steps to send with a first one; none under `max_inflight` or with pinned clients."""
        hosts = self._clients
        if hosts.pinned or self._max_inflight < math.inf:
            return []
        allowed = (job for job in self._waiting if host in hosts.allowed(job.client))
        # A host takes at most half of its share of the queue, so that all hosts end at about the same time.
        share = math.ceil(len(self._waiting) / (2 * len(hosts)))
        chosen = short_steps(first, allowed, self._pace, share, LEAST_S, MOST_S)
        if chosen:
            taken = {id(job) for job in chosen}
            self._waiting = [job for job in self._waiting if id(job) not in taken]
        return chosen

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _startable(self) -> tuple[int, int] | None:
        """The place in the queue of the first job that can start, and its host; None: none can."""
        hosts = self._clients
        if sum(hosts.load) >= self._max_inflight:
            return None
        # A second call spares a host the wait for its next one. With few jobs it would keep them from hosts
        # that become free earlier, as a call that was sent stays at its host.
        depth = 2 if len(self._waiting) > len(hosts) else 1
        full = set[tuple[int, ...]]()
        for place, job in enumerate(self._waiting):
            allowed = hosts.allowed(job.client)
            # Jobs with equal hosts find them equally full. A pinned client's host depends on the client, too.
            if allowed in full and not hosts.pinned:
                continue
            host = hosts.free(job, depth)
            if host is not None:
                return place, host
            full.add(allowed)
        return None

    async def _run(self, host: int, jobs: Sequence[Job]) -> None:
        turn, answered = self._patience.begin(host, jobs), False
        try:
            outcomes = await call_host(self._clients.actors[host], jobs, self._ahead)
            answered = True
            for job, outcome in zip(jobs, outcomes, strict=True):
                self._end(job, outcome)
        except asyncio.CancelledError:
            if not turn.limit:  # the event loop ends
                raise
            # A running step cannot be interrupted, so its process is killed; Ray restarts it.
            ray.kill(self._clients.actors[host], no_restart=False)
            self._again(host, jobs, turn.limit)
        # Ray raises an actor's own error as a RayTaskError that is also of the error's class.
        except (*LOST, NewProcessError) as error:
            self._again(host, jobs, cause_of_loss(error))
        except Exception as error:  # passed on to the thread that waits for the future
            for job in jobs:
                self._end(job, explained(error))
        finally:
            self._patience.end(host, turn, answered=answered)
            self._clients.load[host] -= 1
            self._on_load(sum(self._clients.load))
            self._pump()

    def _end(self, job: Job, outcome: Sequence[Any] | Exception) -> None:
        self._open.pop(job.priority[1], None)
        if not self._open:
            self._ahead.end_round()
        if job.step is not None and not isinstance(outcome, Exception):
            self._pace.note(job.step, outcome[0])
        for place, future in enumerate(job.futures):
            # The server's thread gives steps up at any moment, also between a look at `done` and this. The
            # error would end the other jobs of this call, whose results are there.
            with suppress(InvalidStateError):
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome[place])

    def _again(self, host: int, jobs: Sequence[Job], lost: str) -> None:
        """Queue a lost host's jobs again. Calls hold all that they need, so any allowed host may run them."""
        if self._closed:
            return
        # A host may have several calls, which are lost together; the first of them starts the build.
        if host not in self._clients.building:
            self._clients.building.add(host)
            self._begin_build(host, lost)
        steps = f"{jobs[0]}" + (f" and {len(jobs) - 1} more" if len(jobs) > 1 else "")
        self._tell(
            f"host {host} {lost.splitlines()[0]}; it is restarted, and what it had runs again: {steps}"
        )
        for job in jobs:
            job.lost += 1
            if job.lost <= self._faults.max_retries:
                bisect.insort(self._waiting, job)
                continue
            times = "once" if job.lost == 1 else f"{job.lost} times"
            text = (
                f"{job}: its host was lost {times} (faults.max_retries = "
                f"{self._faults.max_retries}), at last host {host}, because it {lost}"
            )
            self._end(job, RunError(text))

    def _begin_build(self, host: int, lost: str) -> None:
        self._spawn(self._build(host, lost))

    async def _build(self, host: int, lost: str) -> None:
        await self._clients.build(host, lost, self._pump)
        with suppress(InvalidStateError):  # another host was the first
            self.started.set_result(None)
        self._pump()

    def _refuse_hopeless(self) -> None:
        """End the jobs that no host can ever run, with an error."""
        if not self._clients.gone:
            return
        # A copy, as jobs are removed on the way.
        for job in list(self._waiting):
            error = self._clients.hopeless(job)
            if error is not None:
                self._waiting.remove(job)
                self._end(job, error)
