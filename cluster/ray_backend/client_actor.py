"""The actor that runs clients' steps: a thin wrapper of a host.

Its process imports this module as it starts, so nothing of the server's side is imported here: no tables,
pictures or checkpoints.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Sequence
from typing import Any

import ray
import torch

from rayfed_kd.cluster.engine.calls import (
    EvaluationCall,
    EvaluationResult,
    LiveState,
    NewProcessError,
    PersonalCall,
    PersonalResult,
)
from rayfed_kd.cluster.engine.device import gpu
from rayfed_kd.cluster.engine.host import Host, make_host
from rayfed_kd.cluster.engine.logical_gpus import LOGICAL_GPUS, is_logical
from rayfed_kd.cluster.engine.running import cut, evaluate, run_groups
from rayfed_kd.cluster.engine.summing import sum_groups
from rayfed_kd.cluster.ray_backend.handles import machine_name
from rayfed_kd.cluster.ray_backend.packing import PackedCalls, stacked
from rayfed_kd.cluster.ray_backend.placement import Plan
from rayfed_kd.errors import RunError
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


def _packed(states: Sequence[LiveState]) -> Any:
    """The states that leave this process after each step; no other copy outlives the process.

    Returns: one client's state; a list of several clients' states; None if no client has one.
    """
    if all(state.state is None for state in states):
        return None
    return states[0].resolve() if len(states) == 1 else [state.resolve() for state in states]


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
        num_gpus = plan.client.num_gpus
        device = assigned_device(num_gpus, recipe.placement.threads, recipe.deterministic)
        share = min(num_gpus, 1.0)
        keep, name = plan.keep_states, machine_name()
        self._built = make_host(setting, host, device, keep, name, gpu_share=share, interrupts=False)
        gc.collect()
        gc.freeze()  # these objects live on; scanning them in each collection takes as long as a small step

    def run(self, packed: PackedCalls, sizes: Sequence[int], sums: bool) -> list[Any]:
        """Run steps, of which the server waits for the facts alone.

        Args:
            packed: the calls.
            sizes: of the groups of calls that train as one batch, in order; a step alone is a group of one.
            sums: whether to add the replies together.
        Returns: the packed facts, with a StepError for each step of a failed group unless replies are summed;
            all stacked parts, or the sums; the states of each group (None if no client keeps one). All but
            the first stay in the object store, so that keeping one does not keep the others there.
        """
        groups = cut(packed.calls(), sizes)
        done = sum_groups(self._host, groups) if sums else run_groups(self._host, groups)
        # One object for a group's states: a client's own is copied out of it where it is kept.
        states = [_packed(group) for group in cut(done.states, sizes)]
        parts = done.sums if sums else stacked(done.parts)
        return [pickle.dumps(done.facts), parts, *states]

    def evaluate(self, call: EvaluationCall | PersonalCall) -> EvaluationResult | PersonalResult:
        """Evaluate a shared model on a stretch of test samples, or a client's own model."""
        return evaluate(self._host, call)

    @property
    def _host(self) -> Host:
        if self._built is None:
            raise NewProcessError("it was restarted")
        return self._built
