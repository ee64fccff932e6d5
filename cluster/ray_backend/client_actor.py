"""The actor that runs clients' steps: a thin wrapper of a host.

Its process imports this module as it starts, so nothing of the server's side is imported here: no tables,
pictures or checkpoints.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import ray
import torch

from cluster.engine.calls import (
    EvaluationCall,
    EvaluationResult,
    LiveState,
    NewProcessError,
    PersonalCall,
    PersonalResult,
    StepCall,
    StepError,
    StepFacts,
)
from cluster.engine.device import gpu
from cluster.engine.host import Host
from cluster.engine.logical_gpus import LOGICAL_GPUS, is_logical
from cluster.engine.summing import cut, summed_steps
from cluster.ray_backend.handles import machine_name
from cluster.ray_backend.packing import PackedCalls, pack_facts, stacked
from cluster.ray_backend.placement import Plan
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


def _packed(states: Sequence[LiveState]) -> list[Mapping[str, Any]]:
    """States as they leave this process, after each step: no other copy outlives it."""
    return [state.resolve() for state in states]


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
        keep, name = plan.keep_states, machine_name()
        self._built = Host(setting, host, device, keep, name, gpu_share=share, interrupts=False)
        gc.collect()
        gc.freeze()  # these objects live on; scanning them in each collection takes as long as a small step

    @ray.method(num_returns=3)
    def step(self, call: StepCall) -> tuple[StepFacts, Mapping[str, Array], Mapping[str, Any]]:
        """Run one client's step. Of its three return values the server waits for the facts alone.

        Returns: the facts, the reply's encoded parts, and the packed state.
        """
        facts, parts, state = self._host.step(call)
        return facts, parts, state.resolve()

    @ray.method(num_returns=3)
    def steps(self, packed: PackedCalls) -> tuple[bytes, Any, list[Any] | None]:
        """Run a group's steps: packed facts, stacked parts, and states (None if no client keeps one)."""
        facts, parts, states = self._host.steps(packed.calls())
        stateless = not any(one.keeps_state for one in facts)
        # One object for all states: a client's state is copied out of it where it is kept (`RowHandle.own`).
        return pack_facts(facts), stacked(parts), None if stateless else _packed(states)

    def several(self, packed: PackedCalls) -> list[Any]:
        """Run steps one after another, in one call, as a call costs more than a short step.

        Returns: the packed facts, with a StepError for each failed step; the stacked parts; each state.
        """
        host, done = self._host, list[tuple[Any, Mapping[str, Array], Any]]()
        for call in packed.calls():
            try:
                done.append(host.step(call))
            except StepError as error:  # the other steps are independent of it, and their results are used
                done.append((error, {}, LiveState(None)))
        facts, parts, states = zip(*done, strict=True)
        # Each state is a return value of its own, so that keeping one does not keep the others in the store.
        return [pack_facts(facts), stacked(parts), *_packed(states)]

    def summed(self, packed: PackedCalls, sizes: Sequence[int]) -> list[Any]:
        """Run steps and sum their replies: packed facts, the sums, each state, and each reply for a slot.

        Args:
            packed: the calls.
            sizes: of the groups of calls that train together, in order.
        """
        done = summed_steps(self._host, cut(packed.calls(), sizes))
        # Each state and reply is a return value of its own, as in `several`.
        return [pack_facts(done.facts), done.sums, *_packed(done.states), *done.singles]

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
