"""The hosts of a run: which are built, which are lost for good, which client may run on which."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import ray

from rayfed_kd.cluster.ray_backend.dispatch.host_calls import LOST, cause_of_loss, explained
from rayfed_kd.cluster.ray_backend.dispatch.jobs import Job
from rayfed_kd.cluster.ray_backend.dispatch.patience import FIRST_S, LOOK_S, MULTIPLE
from rayfed_kd.cluster.ray_backend.placement import Plan
from rayfed_kd.errors import RunError

# Seconds between two tries to build a host that has no room, until the user is told, and until its clients'
# steps are given up if no other host may run them. It is tried further all the same: a machine may come back.
POLL_S, NOTICE_S, RESTART_S = 0.5, 15.0, 300.0
ANSWER_S, SILENCES = 1200.0, 2  # how long a process may take to be built again, and how often none may do it


class ClientHosts:
    """The hosts by number, with their load and state.

    Args:
        actors: the actors' handles, not built yet.
        blueprint: a reference to the blueprint that they are built from.
        plan: which client may run on which host. Shared models are evaluated on any host.
        tell: called with a line when a host waits for room, and when it has found some.

    Attributes:
        actors: their handles, by number.
        pinned: whether client k runs on host k.
        load: number of calls that each host has.
        building: hosts that are not built: new ones, lost ones until they are built again, and those that
            are gone. No job is sent to them.
        gone: host -> why it cannot be built: nobody waits for it any longer.
    """

    def __init__(
        self, actors: Sequence[Any], blueprint: Any, plan: Plan, tell: Callable[[str], None]
    ) -> None:
        self.pinned, self._tell = plan.pinned, tell
        self.actors, self._blueprint, self._plan = actors, blueprint, plan
        self.load = [0] * len(actors)
        self.building = set(range(len(actors)))
        self._new = set(self.building)  # hosts that were never built
        self._longest_s: float | None = None  # seconds that the longest first build took
        self.gone: dict[int, str] = {}
        self._fault: Exception | None = None  # why no host can be built

    def __len__(self) -> int:
        return len(self.actors)

    def free(self, job: Job, depth: int) -> int | None:
        """The host that a job goes to now; None: none has room.

        Args:
            job: the job.
            depth: number of calls that a host may have.
        """
        if self.pinned and job.client is not None:
            if job.client not in self.building:
                return job.client  # whatever its load: the client's state is on this host
            if job.client in self._new:  # it is built in a moment; a lost one may take minutes
                return None
        built = [host for host in range(len(self)) if host not in self.building]
        with_room = [host for host in built if self.load[host] < depth]
        # Of equals the lowest number; no result depends on the choice.
        return min(with_room, key=self.load.__getitem__, default=None)

    async def build(self, host: int, lost: str, waits: Callable[[], None] = lambda: None) -> None:
        """Build a new or restarted host as soon as it answers. Until then no other call is sent to it.

        One that finds no room for RESTART_S is gone, and comes back when there is room.

        A process that gives no answer is killed, and its successor built; after SILENCES the host is gone.
        A restarted one may take ANSWER_S. A new one may take MULTIPLE times as long as the longest that was
        built, at least ANSWER_S, and FIRST_S before any was built.

        Args:
            host: the host's number.
            lost: why it was lost, for the message if it never answers.
            waits: called when the host is gone for now.
        """
        silences, paused_s = 0, 0.0
        while True:
            try:
                built = self.actors[host].build.remote(self._blueprint, host, self._plan)
                await self._answer(host, asyncio.wrap_future(built.future()))
                self.building.discard(host)
                self._new.discard(host)
                self.gone.pop(host, None)
                if paused_s >= NOTICE_S:
                    self._tell(f"host {host} has found room; {self._at_work()}")
                return
            except TimeoutError as error:
                # Taken for lost by its callers, the process may live on, and hang in the call that it had.
                self.restart(host)
                lost, silences = str(error), silences + 1
                if silences == SILENCES:
                    break
            except ray.exceptions.ActorUnavailableError:  # it is starting, or no machine has room for it now
                await asyncio.sleep(POLL_S)
                paused_s += POLL_S
                if paused_s == NOTICE_S:
                    self._tell(f"host {host} waits for room on a machine; {self._at_work()}")
                if paused_s == RESTART_S:
                    self._new.discard(host)
                    self.gone[host] = f"{lost} and found no room for {RESTART_S:g} s"
                    waits()
            except LOST as error:
                lost = cause_of_loss(error)
                break
            except Exception as error:  # raised by `build`, such as other code there: no host can be built
                self._fault = explained(error)
                break
        # It stays in `building`, so that no job is sent to it.
        self._new.discard(host)
        self.gone[host] = lost

    def end(self) -> None:
        """End all hosts after the last round."""
        for actor in self.actors:
            ray.kill(actor)

    def restart(self, host: int) -> None:
        """Kill a host's process, as a running call cannot be interrupted; Ray starts another."""
        ray.kill(self.actors[host], no_restart=False)

    def _at_work(self) -> str:
        return f"{len(self) - len(self.building)} of {len(self)} hosts are at work"

    async def _answer(self, host: int, answer: asyncio.Future[Any]) -> None:
        """Wait until a build has ended. Raises: what it raised; TimeoutError if it takes too long."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not answer.done():
            limit_s, took_s = self._limit_s(host), loop.time() - began
            if took_s >= limit_s:
                answer.cancel()
                raise TimeoutError(f"gave no answer for {limit_s:g} s")
            # In short waits, as the limit grows while others are built: of a thousand processes that start on
            # one machine the last answers long after the first.
            await asyncio.wait({answer}, timeout=min(LOOK_S, limit_s - took_s))
        answer.result()
        if host in self._new:
            self._longest_s = max(self._longest_s or 0.0, loop.time() - began)

    def _limit_s(self, host: int) -> float:
        if host not in self._new:
            return ANSWER_S
        return FIRST_S if self._longest_s is None else max(ANSWER_S, MULTIPLE * self._longest_s)

    def hopeless(self, job: Job) -> Exception | None:
        """Why no host can ever run a job; None if one can, or may come back."""
        if not self.gone or (self._fault is None and len(self.gone) < len(self)):
            return None
        last = len(self) - 1
        text = f"{job}: no host came back for it; host {last} {self.gone.get(last)}"
        return self._fault or RunError(text)
