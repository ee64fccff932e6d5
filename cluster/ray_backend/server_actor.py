"""The server's actor: a thin wrapper of the server's loop, which has its own thread.

The launching process creates all actors and gives the server the clients' handles. Ray would end actors
that the server created together with the server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from cluster.ray_backend.client_actor import assigned_device
from cluster.ray_backend.engine import RayEngine
from cluster.ray_backend.metrics import Meters
from cluster.ray_backend.placement import Plan
from cluster.server.assembly import AssembledRun, assemble
from rayfed_kd.protocol import Array
from rayfed_kd.setting.blueprint import Blueprint

WAIT_S, LOOK_S = 5.0, 0.02  # most seconds that a question for news waits; between two looks


# The group has an event loop of its own, so its methods answer while the actor's own loop is busy.
@ray.remote(concurrency_groups={"control": 2})  # type: ignore[call-overload]
class ServerActor:
    """The server: it runs the loop in a thread and writes the results; it answers calls at any moment.

    Args:
        blueprint: the setting to build.
        reference: a list with one reference to the blueprint, which the client actors are built from.
        plan: the run's hosts.
        folder: the run's folder.
        resume: whether to continue from the newest checkpoint in the folder.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        reference: Sequence[Any],
        plan: Plan,
        folder: str,
        resume: bool = False,
    ) -> None:
        setting = blueprint.build()
        (self._blueprint,) = reference  # Ray replaces a reference by its object, unless it is in a list
        recipe = setting.recipe
        self._device = assigned_device(plan.server.num_gpus, recipe.placement.threads, recipe.deterministic)
        self._setting, self._plan = setting, plan
        self._folder, self._resume = Path(folder), resume
        self._assembled: AssembledRun | None = None
        self._engine: RayEngine | None = None
        self._stopping = False
        self._lines: list[str] = []

    async def run(self, clients: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Array]]:
        """Run all rounds. The tables are closed also after an error.

        Args:
            clients: the client actors' handles.
        Returns: the summary, and the shared models of the last evaluated round: name -> [P] float32.
        """
        loop = asyncio.get_running_loop()
        meters = Meters(self._folder.name)
        self._engine = RayEngine.of(
            self._setting,
            clients,
            self._blueprint,
            self._plan,
            loop,
            on_load=meters.in_flight,
            tell=self._lines.append,
        )
        # In a thread: the event loop must stay free for references, of which resuming needs some, too.
        self._assembled = await asyncio.to_thread(
            assemble,
            self._setting,
            self._engine,
            self._folder,
            device=self._device,
            resume=self._resume,
            on_event=meters.round,
            tell=self._lines.append,
        )
        # `stop` came while the run was assembled, and had no simulation to stop yet.
        if self._stopping:
            self._assembled.simulation.stop()
        # The clients' actors end before the last pictures are drawn, which have the machine to themselves.
        summary = await asyncio.to_thread(self._assembled.run, self._engine.close)
        return summary, self._assembled.models()

    @ray.method(concurrency_group="control")
    async def news(self, line: int, event: int, wait: bool) -> tuple[list[str], list[dict[str, Any]]]:
        """What is to be told: lines for the user, such as lost hosts, and the rounds' events.

        Args:
            line, event: from these indices on.
            wait: whether to wait up to WAIT_S until there is something.
        """
        until = time.monotonic() + WAIT_S * wait
        while True:
            events = [] if self._assembled is None else self._assembled.recorder.events[event:]
            if events or self._lines[line:] or time.monotonic() >= until:
                return self._lines[line:], events
            # Other threads write them. A look costs microseconds, a call of the actor a millisecond.
            await asyncio.sleep(LOOK_S)

    @ray.method(concurrency_group="control")
    async def stop(self) -> None:
        """End the run at once, or before it starts; `run` then returns the summary up to there."""
        # Set before `_assembled` is read; `run` sets `_assembled` before it reads this flag: so one of the
        # two stops the simulation.
        self._stopping = True
        if self._assembled is not None and self._engine is not None:
            self._assembled.simulation.stop()
            self._engine.cancel()
