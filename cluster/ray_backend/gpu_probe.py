"""What a host takes of a GPU, measured on one before a run: `placement.gpu_share: measured`.

Which share a host has decides how many clients train at a time, and never a result.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import ray
import torch

from cluster.engine.calls import Held, StepCall, StepResult
from cluster.engine.gpu_use import MIB, HostMemory, host_memory
from cluster.engine.host import Host
from cluster.engine.local import LocalEngine
from cluster.ray_backend.client_actor import assigned_device
from cluster.ray_backend.machines import prepare_machines, ray_nodes
from cluster.ray_backend.remote_run import NOTICE_S, ROOM_S, resources_of
from cluster.server.assembly import assemble
from rayfed_kd.errors import RayfedError, RecipeError, RunError
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.results.telling import as_teller
from rayfed_kd.setting.blueprint import Blueprint
from rayfed_kd.setting.setting import Setting

KEY = "placement.gpu_share"
SPARE = 1.1  # of what was measured: a later round may take more than the first two
ROUNDS = 2  # in the first clients have no state yet


def with_measured_share(blueprint: Blueprint, folder: str, tell: Callable[[str], None]) -> Recipe:
    """The recipe with the `placement.client.num_gpus` that a host needs, at most what it had.

    One host runs two rounds of one local epoch on a GPU of the cluster, with all data, where the recipe's
    client actors may be.

    Args:
        blueprint: of a recipe that asks for `measured`.
        folder: one that the run's machines see.
        tell: called with what was measured.
    Raises: RecipeError if GPUs are only counted, or a host takes more than the recipe's share; RunError if
        no GPU is free for too long.
    """
    recipe, request = blueprint.recipe, blueprint.recipe.placement.client
    most = request.num_gpus
    as_teller(tell).phase("measuring what a host takes of a GPU")
    everywhere, _ = prepare_machines(blueprint, ray_nodes(), folder, recipe.placement.data, tell)
    task = ray.remote(measured_on_gpu).options(
        label_selector=request.label_selector, max_retries=0, **resources_of(request)
    )
    answer = task.remote(everywhere, most)
    if not ray.wait([answer], timeout=NOTICE_S)[0]:
        tell(f"waiting up to {ROOM_S / 60:.0f} minutes for the measurement on a GPU")
    if not ray.wait([answer], timeout=ROOM_S)[0]:
        ray.cancel(answer, force=True)
        raise RunError(f"{KEY} = measured: no GPU was free, or two rounds took more than {ROOM_S:g} s")
    try:
        taken: HostMemory = ray.get(answer)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, RayfedError) else error from None
    share = share_of(taken, most)
    tell(f"{taken}; placement.client.num_gpus is {share:g}, with a tenth to spare")
    client = request.model_copy(update={"num_gpus": share})
    placement = recipe.placement.model_copy(update={"client": client, "gpu_share": "given"})
    return recipe.model_copy(update={"placement": placement})


def share_of(taken: HostMemory, most: float) -> float:
    """The share for a host that takes so much, in hundredths of a GPU.

    Args:
        taken: what was measured.
        most: the recipe's share.
    Raises: RecipeError if a host takes more than that.
    """
    if taken.share > min(most, 1.0):
        raise RecipeError(f"{KEY} = measured: {taken}, and placement.client.num_gpus is {most:g}")
    hundredths = 100 * SPARE * taken.needed_mb / taken.total_mb
    return min(most, math.ceil(round(hundredths, 6)) / 100)  # rounded: 1.1 has no exact binary form


def measured_on_gpu(blueprint: Blueprint, num_gpus: float) -> HostMemory:
    """Measure on this process's GPU; a task of Ray, whose process ends with it, and leaves the GPU.

    Raises: RecipeError if it has none, or a host takes more of it than `num_gpus`.
    """
    recipe = blueprint.recipe
    device = assigned_device(num_gpus, recipe.placement.threads, recipe.deterministic)
    try:
        taken = measured(blueprint, device)
    except torch.OutOfMemoryError as error:
        raise RecipeError(
            f"{KEY} = measured: a host takes more than {num_gpus:g} of a GPU ({str(error).splitlines()[0]})"
        ) from None
    if taken is None:
        raise RecipeError(f"{KEY} = measured: GPUs are only counted here, and have no memory; expected given")
    return taken


def measured(blueprint: Blueprint, device: torch.device) -> HostMemory | None:
    """What a host takes of a device after two rounds, states packed as on Ray; None: it is no GPU."""
    with tempfile.TemporaryDirectory() as folder:
        setting = _shortened(blueprint)
        wanted = setting.recipe.placement.clients_per_actor
        host = Host(setting, device=device, keep_states=1 if wanted == "auto" else wanted)
        assemble(setting, _OneHost(host), Path(folder)).run()
    return host_memory(torch.cuda.max_memory_reserved(0) / MIB if device.type == "cuda" else 0.0, 0.0)


class _OneHost(LocalEngine):
    """One host that keeps of a state what a client actor keeps: the others leave the device."""

    def submit(self, calls: Sequence[StepCall]) -> list[Future[StepResult]]:
        packed: list[Future[StepResult]] = []
        for done in super().submit(calls):
            result = done.result()
            packed.append(Future())
            packed[-1].set_result(replace(result, state=Held(result.state.resolve())))
        return packed


def _shortened(blueprint: Blueprint) -> Setting:
    """Two rounds of one local epoch, or of all if the method needs more, as FedRep's epochs of the head."""
    recipe = blueprint.recipe
    evaluation = recipe.evaluation.model_copy(update={"every": 1})
    short = recipe.model_copy(update={"rounds": ROUNDS, "evaluation": evaluation})
    local = recipe.local.model_copy(update={"epochs": min(1, recipe.local.epochs)})
    setting = replace(blueprint, recipe=short.model_copy(update={"local": local})).build()
    try:
        setting.check()
    except RecipeError:  # the recipe itself can be run
        setting = replace(blueprint, recipe=short).build()
    return setting
