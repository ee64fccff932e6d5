"""The server's actor: a thin wrapper of the server's loop, which has its own thread.

The launching process creates all actors and gives the server the clients' handles. Ray would end actors
that the server created together with the server.

A run's figures, rounds, calls in flight and bytes, go to Ray's dashboard and Prometheus. Ray serves them on
every machine's metrics port as ray_rayfed_kd_..., with the run's name as a tag; its dashboard's Prometheus
and Grafana take them from there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.metrics import Counter, Gauge

from rayfed_kd.cluster.ray_backend.client_actor import assigned_device
from rayfed_kd.cluster.ray_backend.engine import RayEngine
from rayfed_kd.cluster.ray_backend.placement import Plan
from rayfed_kd.cluster.server.assembly import AssembledRun, assemble
from rayfed_kd.protocol import Array
from rayfed_kd.results.telling import Event
from rayfed_kd.setting.blueprint import Blueprint

RUN = "run"


class Meters:
    """The meters of one run, in the server's process.

    Args:
        run: the run's name, the tag of all its meters.

    Attributes:
        in_flight: shows how many calls the client actors have now.
    """

    def __init__(self, run: str) -> None:
        tags = {RUN: run}
        self._rounds = Counter("rayfed_kd_rounds", "Rounds that ended.", (RUN,))
        self._bytes = Counter("rayfed_kd_bytes", "Bytes of messages, by direction.", (RUN, "direction"))
        self.in_flight = Gauge("rayfed_kd_calls_in_flight", "Calls that client actors have.", (RUN,))
        for meter in (self._rounds, self._bytes, self.in_flight):
            meter.set_default_tags(tags)

    def round(self, event: Mapping[str, Any]) -> None:
        """Count a round that ended.

        Args:
            event: the round's event, with `bytes_up` and `bytes_down`.
        """
        self._rounds.inc()
        for direction in ("up", "down"):
            if event[f"bytes_{direction}"]:  # a counter takes no zero
                self._bytes.inc(event[f"bytes_{direction}"], {"direction": direction})


WAIT_S, LOOK_S = 5.0, 0.02  # most seconds that a question for news waits; between two looks
BEGUN = ""  # among the lines: the first round begins


# The group has an event loop of its own, so its methods answer while the actor's own loop is busy.
@ray.remote(concurrency_groups={"control": 2})  # type: ignore[call-overload]
class ServerActor:
    """The server: it runs the loop in a thread and writes the results; it answers calls at any moment.

    The constructor does nothing: of what it raised Ray would tell the caller a long text, not the error.
    """

    def __init__(self) -> None:
        self._assembled: AssembledRun | None = None
        self._engine: RayEngine | None = None
        self._stopping = False
        self._lines: list[str] = []

    async def take(self, blueprint: Blueprint) -> None:
        """Keep what the server and the clients are built from; `run` comes next.

        The launching process must own nothing in Ray's object store while the rounds run. When a raylet
        ends, Ray tries to note there that such an object is lost; as the store is gone, too, it then ends
        the owner without a word.

        Args:
            blueprint: the setting to build.
        """
        self._blueprint, self._shared = blueprint, ray.put(blueprint)

    async def run(
        self, taken: None, clients: Sequence[Any], plan: Plan, folder: str, resume: bool
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        """Build the server and run all rounds. The tables are closed also after an error.

        Args:
            taken: what `take` returned; Ray calls this one when that one has ended.
            clients: the client actors' handles.
            plan: the run's hosts.
            folder: the run's folder.
            resume: whether to continue from the newest checkpoint in the folder.
        Returns: the summary, and the shared models of the last evaluated round: name -> [P] float32.
        """
        loop, path = asyncio.get_running_loop(), Path(folder)
        meters, setting = Meters(path.name), await asyncio.to_thread(self._blueprint.build)
        recipe = setting.recipe
        device = assigned_device(plan.server.num_gpus, recipe.placement.threads, recipe.deterministic)
        self._engine = RayEngine(
            clients,
            self._shared,
            plan,
            setting.partition.sizes.tolist(),
            loop,
            faults=recipe.faults,
            architectures=setting.models_by_client,
            on_load=meters.in_flight.set,
            tell=self._lines.append,
        )
        # In a thread: the event loop must stay free for references, of which resuming needs some, too.
        self._assembled = await asyncio.to_thread(
            assemble,
            setting,
            self._engine,
            path,
            device=device,
            gpu_share=min(plan.server.num_gpus, 1.0),
            resume=resume,
            on_event=meters.round,
            tell=self._lines.append,
        )
        self._lines.append(BEGUN)
        # `stop` came while the run was assembled, and had no simulation to stop yet.
        if self._stopping:
            self._assembled.simulation.stop()
        # The clients' actors end before the last pictures are drawn, which have the machine to themselves.
        summary = await asyncio.to_thread(self._assembled.run, self._engine.close)
        return summary, self._assembled.models()

    @ray.method(concurrency_group="control")
    async def news(self, line: int, event: int, wait: bool) -> tuple[list[str], list[Event]]:
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

    @ray.method(concurrency_group="control")
    async def end(self, round_index: int) -> None:
        """End the run as a stop rule does, as its listener asked for on the event of this round."""
        if self._assembled is not None:
            self._assembled.recorder.ask_to_end(round_index)
