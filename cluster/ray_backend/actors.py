"""The actors: thin shells around a host and around the simulation's loop.

The launching process creates all of them and hands the server the clients' handles: actors that the
server created would die with it. The server's loop runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
import torch

from cluster.engine.calls import (
    EvaluationCall,
    EvaluationResult,
    NewProcessError,
    PersonalCall,
    StepCall,
    StepError,
)
from cluster.engine.host import Host, HostResult
from cluster.ray_backend.engine import RayEngine
from cluster.ray_backend.metrics import Meters
from cluster.ray_backend.packing import PackedCalls, pack_facts, stacked
from cluster.ray_backend.placement import Plan
from cluster.server.assembly import AssembledRun, assemble
from rayfed_kd.errors import RunError
from rayfed_kd.protocol import Array
from rayfed_kd.setting.blueprint import Blueprint

LOGICAL_GPUS = "RAYFED_KD_LOGICAL_GPUS"


def assigned_device(num_gpus: float, threads: int, deterministic: bool) -> torch.device:
    """The device that Ray gave this actor; on a GPU its memory is capped to the actor's share."""
    torch.set_num_threads(threads)
    assigned = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    if not assigned or num_gpus == 0 or os.environ.get(LOGICAL_GPUS) == "1":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RunError(
            f"Ray gave this actor GPU {assigned}, but torch sees none; {LOGICAL_GPUS}=1 in the environment "
            "of Ray's machines computes on the CPU all the same, to try a placement"
        )
    if num_gpus < 1:
        torch.cuda.set_per_process_memory_fraction(num_gpus, 0)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True)
    return torch.device("cuda", 0)


class ClientActor:
    """A process that runs clients' steps. Holds the models, and the states of the clients it ran last.

    Nothing is given to the constructor: Ray would run it again after a restart with what may be lost by
    then. The engine sends `build` to every process, also to a restarted one.
    """

    def __init__(self) -> None:
        self._built: Host | None = None

    def build(self, blueprint: Blueprint, host: int, plan: Plan) -> None:
        """Makes the host; the first call of a process.

        Raises: RunError if this process runs other code than made the blueprint.
        """
        setting = blueprint.build()
        recipe = setting.recipe
        num_gpus = plan.resources(host).num_gpus
        device = assigned_device(num_gpus, recipe.placement.threads, recipe.deterministic)
        self._built = Host(setting, host, device, plan.keep_states)
        gc.collect()
        gc.freeze()  # what is here stays; looking at it all again and again takes as long as small steps do

    @ray.method(num_returns=3)
    def step(self, call: StepCall) -> HostResult:
        """One client's step; three return values, so that the server waits for the facts alone."""
        return self._host.step(call)

    @ray.method(num_returns=3)
    def steps(self, packed: PackedCalls) -> tuple[bytes, Any, list[Any] | None]:
        """A group's steps; their facts and parts, packed, and states, None where no client keeps any."""
        facts, parts, states = self._host.steps(packed.calls())
        kept = states if any(one.keeps_state for one in facts) else None
        return pack_facts(facts), stacked(parts), kept

    def several(self, packed: PackedCalls) -> list[Any]:
        """Steps one after another: facts or errors, packed, the parts, and each step's state."""
        host, done = self._host, list[tuple[Any, Mapping[str, Array], Any]]()
        for call in packed.calls():
            try:
                done.append(host.step(call))
            except StepError as error:  # the others' results hold
                done.append((error, {}, None))
        facts, parts, states = zip(*done, strict=True)
        return [pack_facts(facts), stacked(parts), *states]

    def evaluate(self, call: EvaluationCall) -> EvaluationResult:
        """A stretch of test samples."""
        return self._host.evaluate(call)

    def evaluate_personal(self, call: PersonalCall) -> int:
        """A client's own model."""
        return self._host.evaluate_personal(call)

    @property
    def _host(self) -> Host:
        if self._built is None:
            raise NewProcessError("it was restarted")
        return self._built


@ray.remote(concurrency_groups={"control": 2})  # type: ignore[call-overload]  # status answers while a round's references come in
class ServerActor:
    """The server: the simulation's loop in a thread, results in its own process, status at any moment."""

    def __init__(
        self,
        blueprint: Blueprint,
        reference: Sequence[Any],
        clients: Sequence[Any],
        plan: Plan,
        folder: str,
        resume: bool = False,
    ) -> None:
        setting = blueprint.build()
        (self._blueprint,) = reference  # in a list, so that it comes as a reference
        recipe = setting.recipe
        self._device = assigned_device(plan.server.num_gpus, recipe.placement.threads, recipe.deterministic)
        self._setting, self._clients, self._plan = setting, clients, plan
        self._folder, self._resume = Path(folder), resume
        self._assembled: AssembledRun | None = None
        self._engine: RayEngine | None = None
        self._stopping = False
        self._told: list[str] = []

    async def run(self) -> dict[str, Any]:
        """The whole run; gives the summary. Tables are closed whatever happens."""
        loop = asyncio.get_running_loop()
        sizes = self._setting.partition.sizes.tolist()
        recipe, plan = self._setting.recipe, self._plan
        meters = Meters(self._folder.name)
        self._engine = RayEngine(
            self._clients,
            self._blueprint,
            plan,
            sizes,
            loop,
            faults=recipe.faults,
            max_inflight=recipe.placement.max_inflight,
            on_load=meters.in_flight,
            tell=self._told.append,
        )
        self._assembled = await asyncio.to_thread(
            assemble,
            self._setting,
            self._engine,
            self._folder,
            device=self._device,
            resume=self._resume,
            on_event=meters.round,
            tell=self._told.append,
        )
        if self._stopping:
            self._assembled.simulation.stop()
        return await asyncio.to_thread(self._assembled.run)

    @ray.method(concurrency_group="control")
    async def events(self, since: int) -> list[dict[str, Any]]:
        """The rounds' events from number `since` on."""
        return [] if self._assembled is None else self._assembled.recorder.events[since:]

    @ray.method(concurrency_group="control")
    async def told(self, since: int) -> list[str]:
        """Lines from number `since` on: what was found damaged on resuming, who trains together."""
        return self._told[since:]

    @ray.method(concurrency_group="control")
    async def stop(self) -> None:
        """Ends the run at once, or before it starts; `run` then returns with what there is."""
        self._stopping = True
        if self._assembled is not None and self._engine is not None:
            self._assembled.simulation.stop()
            self._engine.cancel()

    async def evaluated(self) -> dict[str, Array]:
        """The shared models of the last evaluated round, name -> vector."""
        return {} if self._assembled is None else self._assembled.models()
