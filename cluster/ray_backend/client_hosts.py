"""The client actors of a run: which are built, which are lost for good, and which client may run where."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import ray

from cluster.ray_backend.host_calls import LOST, cause_of_loss, explained
from cluster.ray_backend.jobs import Job
from cluster.ray_backend.placement import Plan
from rayfed_kd.errors import RunError

POLL_S, RESTART_S = 0.5, 300.0


class ClientHosts:
    """Client actors by number, and what is known of each.

    Args:
        actors: their handles, not built yet.
        blueprint: a reference to what they are built from.
        plan: where clients may run. Shared models are evaluated anywhere.

    Attributes:
        actors: as above.
        load: calls that each has.
        building: hosts that are not built: new ones, and lost ones until they are back.
        gone: hosts that never will be built, and why.
    """

    def __init__(self, actors: Sequence[Any], blueprint: Any, plan: Plan) -> None:
        self.actors, self.pinned = list(actors), plan.pinned
        self.load = [0] * len(actors)
        self._blueprint, self._plan = blueprint, plan
        self._every = tuple(range(len(actors)))
        self._by_client = {client: one.hosts for one in plan.classes for client in one.clients}
        self.building = set(self._every)
        self._new = set(self._every)  # those that never were built
        self.gone: dict[int, str] = {}
        self._fault: Exception | None = None  # why no host can be built

    def __len__(self) -> int:
        return len(self.actors)

    def allowed(self, client: int | None) -> tuple[int, ...]:
        """The hosts that a client may run on; all for a shared model's evaluation, which is no client's."""
        return self._every if client is None else self._by_client.get(client, self._every)

    def free(self, job: Job, depth: int) -> int | None:
        """The host that a job goes to now; None: none has room.

        Args:
            depth: calls that a host may have.
        """
        if self.pinned and job.client is not None:
            if job.client not in self.building:
                return job.client  # its state is there
            if job.client in self._new:  # it will be, in a moment
                return None
        built = [host for host in self.allowed(job.client) if host not in self.building]
        host = min(built, key=self.load.__getitem__) if built else None
        return host if host is not None and self.load[host] < depth else None

    async def build(self, host: int, lost: str) -> None:
        """Builds a new or restarted host, as soon as it answers; until then no call is sent to it."""
        for _ in range(int(RESTART_S / POLL_S)):
            try:
                built = self.actors[host].build.remote(self._blueprint, host, self._plan)
                await asyncio.wrap_future(built.future())
                self.building.discard(host)
                self._new.discard(host)
                return
            except ray.exceptions.ActorUnavailableError:  # it starts, or no machine has room for it now
                await asyncio.sleep(POLL_S)
            except LOST as error:
                lost = cause_of_loss(error)
                break
            except Exception as error:  # what it raised: other code there, no GPU
                self._fault = explained(error)
                break
        self._new.discard(host)
        self.gone[host] = lost

    def hopeless(self, job: Job) -> Exception | None:
        """Why no host is there for a job and none may come back; None if one is or may."""
        hosts = self.allowed(job.client)
        if not self.gone or (self._fault is None and not all(host in self.gone for host in hosts)):
            return None
        text = f"{job}: no host came back for it; host {hosts[-1]} {self.gone.get(hosts[-1])}"
        return self._fault or RunError(text)
