"""What the engine knows of a host: how to build it, to call it, and to put another in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import ray

from cluster.ray_backend.dispatch.host_calls import call_host
from cluster.ray_backend.dispatch.jobs import Job
from cluster.ray_backend.handles import Ahead
from cluster.ray_backend.placement import Plan


class HostLink(Protocol):
    """A host as the engine's event loop sees it.

    Attributes:
        most_calls: that it may have at a time; a second one spares an actor the wait for it.
        waits_its_turn: whether a call that was sent may lie there while the host does nothing.
        replaceable: whether another process can take its place while the run goes on.
    """

    most_calls: int
    waits_its_turn: bool
    replaceable: bool

    def build(self) -> asyncio.Future[Any]:
        """Build the host; the future is done when it answers."""
        ...

    async def call(self, jobs: Sequence[Job], ahead: Ahead, begun: Callable[[], None]) -> list[Any]:
        """Run jobs; as `call_host`.

        Args:
            jobs: one job of any kind, or several single steps.
            ahead: fetches replies that are on another machine.
            begun: called in the event loop when the host begins, if it `waits_its_turn`.
        """
        ...

    def replace(self, why: str) -> None:
        """End the host's process, which takes too long or does not answer.

        If it is `replaceable`, a new one comes in its place; else the run ends.

        Args:
            why: what it was doing, and for how long.
        """
        ...

    def end(self) -> None:
        """End the host after the last round."""
        ...


class ActorLink:
    """A host in a client actor.

    Args:
        actor: the actor's handle.
        blueprint: a reference to the blueprint that the host is built from.
        number: the host's number.
        plan: the run's hosts.
    """

    most_calls = 2
    waits_its_turn = False
    replaceable = True

    def __init__(self, actor: Any, blueprint: Any, number: int, plan: Plan) -> None:
        self._actor, self._blueprint, self._number, self._plan = actor, blueprint, number, plan

    def build(self) -> asyncio.Future[Any]:
        """Send the blueprint to the actor."""
        return asyncio.wrap_future(
            self._actor.build.remote(self._blueprint, self._number, self._plan).future()
        )

    async def call(self, jobs: Sequence[Job], ahead: Ahead, begun: Callable[[], None]) -> list[Any]:
        """Run jobs in the actor, which begins as soon as it has ended what it had before."""
        return await call_host(self._actor, jobs, ahead)

    def replace(self, why: str) -> None:
        """Kill the process, as a running call cannot be interrupted; Ray starts another."""
        ray.kill(self._actor, no_restart=False)

    def end(self) -> None:
        """Kill the actor."""
        ray.kill(self._actor)
