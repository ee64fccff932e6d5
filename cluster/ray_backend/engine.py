"""The engine on Ray: it schedules calls on client actors, and runs them again if an actor is lost.

Its event loop only moves references. Vectors are resolved where they are used, never here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from rayfed_kd.cluster.engine.calls import EvaluationCall, NewProcessError, PersonalCall, StepResult
from rayfed_kd.cluster.ray_backend.dispatch.client_hosts import ClientHosts
from rayfed_kd.cluster.ray_backend.dispatch.host_calls import LOST, call_host, cause_of_loss, explained, named
from rayfed_kd.cluster.ray_backend.dispatch.job_queue import JobQueue
from rayfed_kd.cluster.ray_backend.dispatch.jobs import Job, samples_of
from rayfed_kd.cluster.ray_backend.dispatch.patience import Patience
from rayfed_kd.cluster.ray_backend.handles import Ahead, published, stored
from rayfed_kd.cluster.ray_backend.placement import Plan
from rayfed_kd.cluster.server.simulation import StoppedError
from rayfed_kd.errors import RunError
from rayfed_kd.protocol import Array, Handle
from rayfed_kd.recipe.sections.safety import FaultsRecipe

STOPPED = "stopped in the middle of a round"


class RayEngine:
    """Runs calls on client actors.

    One thread beside the event loop's, that of the rounds, submits and evaluates; `cancel` may be called from
    any thread. All other work is done in the event loop, so that it needs no locks.

    Args:
        actors: the client actors' handles, not built yet.
        blueprint: a reference to the blueprint that they are built from.
        plan: which client may run on which host. Shared models are evaluated on any host.
        sizes: [K] training samples of each client: steps with more samples start first, until it is known
            how long they take.
        loop: the event loop that waits for references.
        faults: how often a step whose host was lost is run again, and how long a step may take.
        architectures: [K] each client's; empty: all have the same.
        on_load: called with the number of calls that the actors have whenever it changes.
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
        architectures: Sequence[str] = (),
        on_load: Callable[[int], None] = lambda calls: None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._faults, self._tell, self._loop = faults, tell, loop
        self._on_load = on_load
        self._clients = ClientHosts(actors, blueprint, plan, tell)
        self._open: dict[int, Job] = {}  # by number
        self._waiting = JobQueue(
            self._clients, sizes, architectures, lambda job: self._open.pop(job.number, None)
        )
        self._patience = Patience(faults.step_timeout_s, loop, len(self._clients))
        self._sizes = sizes
        # Filled by other threads, emptied by the event loop; a deque's append and popleft are thread-safe.
        self._submitted: deque[Job] = deque()
        self._cancelled = self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()  # asyncio itself keeps only weak references to tasks
        self._count, self._ahead = 0, Ahead()
        # The constructor may run in another thread than the loop, where a task cannot be created directly.
        for host in range(len(self._clients)):
            loop.call_soon_threadsafe(self._begin_build, host, "never started")

    def publish(self, arrays: Mapping[str, Array]) -> Handle:
        """Put arrays into the object store once; small arrays travel with the calls instead."""
        return published(arrays)

    def submit(self, calls: Sequence[Any], summed_sizes: Sequence[int] = ()) -> list[Future[Any]]:
        """Queue steps, or one evaluation.

        Args:
            calls: one call of any kind, or steps as in `Engine.submit`; they go to one host.
            summed_sizes: as there.
        Returns: one future per call.
        """
        self._count += 1
        futures: list[Future[Any]] = [Future() for _ in calls]
        samples = sum(samples_of(call, self._sizes) for call in calls)
        job = Job(self._count, calls, futures, samples, summed_sizes=summed_sizes)
        # Registered before the flag is read. `cancel`, in another thread, sets the flag before it reads the
        # open jobs: so one of the two ends this job in any case.
        self._open[self._count] = job
        if self._cancelled:
            self._end(job, StoppedError(STOPPED))
        else:
            self._submitted.append(job)
            self._loop.call_soon_threadsafe(self._pump)
        return futures

    def evaluate(self, call: EvaluationCall | PersonalCall) -> Future[Any]:
        """Queue the evaluation of a shared model, or of a client's own."""
        return self.submit([call])[0]

    def durable(self, result: StepResult) -> StepResult:
        """Copy a result's parts and state into the object store of the server's machine."""
        return stored(result)

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

    def _pump(self) -> None:
        """Start all jobs that can start."""
        hosts = self._clients
        try:
            while self._submitted:
                self._waiting.add(self._submitted.popleft())
            for job, error in self._waiting.pop_hopeless():
                self._end(job, error)
            while (startable := self._waiting.next()) is not None:
                host, jobs = startable
                # Here, not in the task, which starts later: the next job must see this call.
                hosts.load[host] += 1
                self._on_load(sum(hosts.load))
                self._spawn(self._run(host, jobs))
        except Exception as error:  # the event loop would only log it, and the server's thread wait for ever
            for job in list(self._open.values()):
                self._end(job, error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
            self._clients.restart(host)
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
        """End a job with its results or an error."""
        self._open.pop(job.number, None)
        if not self._open:
            self._ahead.end_round()
        if job.step is not None and not isinstance(outcome, Exception):
            self._waiting.learn(job.step, outcome[0].facts.seconds)
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
        self._tell(
            f"host {host} {lost.splitlines()[0]}; it is restarted, and what it had runs again: {named(jobs)}"
        )
        for job in jobs:
            job.lost += 1
            if job.lost <= self._faults.max_retries:
                self._waiting.add(job)
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
        self._pump()
