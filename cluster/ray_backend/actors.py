"""The actors: thin wrappers of a host and of the server's loop.

The launching process creates all actors and gives the server the clients' handles. Ray would end actors
that the server created together with the server. The server's loop runs in its own thread.
"""

from __future__ import annotations

import asyncio
import gc
import platform
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
    PersonalResult,
    StepCall,
    StepError,
)
from cluster.engine.device import LOGICAL_GPUS, gpu, is_logical
from cluster.engine.host import Host, HostResult
from cluster.ray_backend.engine import RayEngine
from cluster.ray_backend.metrics import Meters
from cluster.ray_backend.packing import PackedCalls, pack_facts, stacked
from cluster.ray_backend.placement import Plan
from cluster.server.assembly import AssembledRun, assemble
from rayfed_kd.errors import RunError
from rayfed_kd.protocol import Array
from rayfed_kd.setting.blueprint import Blueprint


def assigned_device(num_gpus: float, threads: int, deterministic: bool) -> torch.device:
    """Set up the device that Ray assigned to this actor.

    Args:
        num_gpus: the actor's request; a fraction also limits this process's share of GPU memory.
        threads: torch's threads.
        deterministic: whether GPU kernels must be deterministic.
    Returns: the CPU or the first visible GPU, as Ray shows an actor only its own.
    Raises: RunError if Ray assigned a GPU that torch does not see.
    """
    # Ray sets it from num_cpus. The recipe decides instead, so that all hosts give the same bits.
    torch.set_num_threads(threads)
    assigned = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    if not assigned or num_gpus == 0 or is_logical():
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RunError(
            f"Ray gave this actor GPU {assigned}, but torch sees none; {LOGICAL_GPUS}=1 in the environment "
            "of Ray's machines computes on the CPU all the same, to try a placement"
        )
    if num_gpus < 1:
        # Ray only counts fractions of a GPU and limits nothing. This limits torch's own allocations.
        torch.cuda.set_per_process_memory_fraction(num_gpus, 0)
    return gpu(deterministic)


def machine_name() -> str:
    """This machine's name and Ray's address of it: containers and cloned machines may share a name."""
    return f"{platform.node()} ({ray.util.get_node_ip_address()})"  # type: ignore[no-untyped-call]


class ClientActor:
    """A process that runs clients' steps. It has the modules, and the states of the clients it ran last.

    The constructor takes no arguments. Ray calls it again after a restart, and arguments may then be lost
    with a machine. Instead the engine sends `build` to every process, also to a restarted one.
    """

    def __init__(self) -> None:
        self._built: Host | None = None

    def build(self, blueprint: Blueprint, host: int, plan: Plan) -> None:
        """Build the host. This is the first call to a new process.

        Args:
            blueprint: the setting to build.
            host: this host's number.
            plan: says what this actor requested, and how many states it keeps.
        Raises: RunError if this process runs other code than the one that made the blueprint.
        """
        setting = blueprint.build()
        recipe = setting.recipe
        num_gpus = plan.resources(host).num_gpus
        device = assigned_device(num_gpus, recipe.placement.threads, recipe.deterministic)
        share = min(num_gpus, 1.0)
        self._built = Host(setting, host, device, plan.keep_states, machine_name(), gpu_share=share)
        gc.collect()
        gc.freeze()  # these objects live on; scanning them in each collection takes as long as a small step

    @ray.method(num_returns=3)
    def step(self, call: StepCall) -> HostResult:
        """Run one client's step. Of its three return values the server waits for the facts alone."""
        return self._host.step(call)

    @ray.method(num_returns=3)
    def steps(self, packed: PackedCalls) -> tuple[bytes, Any, list[Any] | None]:
        """Run a group's steps: packed facts, stacked parts, and states (None if no client keeps one)."""
        facts, parts, states = self._host.steps(packed.calls())
        stateless = not any(one.keeps_state for one in facts)
        # One object for all states: a client's state is copied out of it where it is kept (`RowHandle.own`).
        return pack_facts(facts), stacked(parts), None if stateless else states

    def several(self, packed: PackedCalls) -> list[Any]:
        """Run steps one after another, in one call, as a call costs more than a short step.

        Returns: the packed facts, with a StepError for each failed step; the stacked parts; each state.
        """
        host, done = self._host, list[tuple[Any, Mapping[str, Array], Any]]()
        for call in packed.calls():
            try:
                done.append(host.step(call))
            except StepError as error:  # the other steps are independent of it, and their results are used
                done.append((error, {}, None))
        facts, parts, states = zip(*done, strict=True)
        # Each state is a return value of its own, so that keeping one does not keep the others in the store.
        return [pack_facts(facts), stacked(parts), *states]

    def evaluate(self, call: EvaluationCall) -> EvaluationResult:
        """Evaluate a shared model on a stretch of test samples."""
        return self._host.evaluate(call)

    def evaluate_personal(self, call: PersonalCall) -> PersonalResult:
        """Evaluate a client's own model."""
        return self._host.evaluate_personal(call)

    @property
    def _host(self) -> Host:
        if self._built is None:
            raise NewProcessError("it was restarted")
        return self._built


# The group has an event loop of its own, so its methods answer while the actor's own loop is busy.
@ray.remote(concurrency_groups={"control": 2})  # type: ignore[call-overload]
class ServerActor:
    """The server: it runs the loop in a thread and writes the results; it answers calls at any moment.

    Args:
        blueprint: the setting to build.
        reference: a list with one reference to the blueprint, which the client actors are built from.
        clients: the client actors' handles.
        plan: the run's hosts.
        folder: the run's folder.
        resume: whether to continue from the newest checkpoint in the folder.
    """

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
        (self._blueprint,) = reference  # Ray replaces a reference by its object, unless it is in a list
        recipe = setting.recipe
        self._device = assigned_device(plan.server.num_gpus, recipe.placement.threads, recipe.deterministic)
        self._setting, self._clients, self._plan = setting, clients, plan
        self._folder, self._resume = Path(folder), resume
        self._assembled: AssembledRun | None = None
        self._engine: RayEngine | None = None
        self._stopping = False
        self._lines: list[str] = []

    async def run(self) -> dict[str, Any]:
        """Run all rounds and return the summary. The tables are closed also after an error."""
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
        return await asyncio.to_thread(self._assembled.run)

    @ray.method(concurrency_group="control")
    async def events(self, since: int) -> list[dict[str, Any]]:
        """The rounds' events from index `since` on."""
        return [] if self._assembled is None else self._assembled.recorder.events[since:]

    @ray.method(concurrency_group="control")
    async def lines(self, since: int) -> list[str]:
        """Lines for the user from index `since` on, such as damaged checkpoints and lost hosts."""
        return self._lines[since:]

    @ray.method(concurrency_group="control")
    async def stop(self) -> None:
        """End the run at once, or before it starts; `run` then returns the summary up to there."""
        # Set before `_assembled` is read; `run` sets `_assembled` before it reads this flag: so one of the
        # two stops the simulation.
        self._stopping = True
        if self._assembled is not None and self._engine is not None:
            self._assembled.simulation.stop()
            self._engine.cancel()

    async def evaluated(self) -> dict[str, Array]:
        """The shared models of the last evaluated round: name -> [P] float32."""
        return {} if self._assembled is None else self._assembled.models()
