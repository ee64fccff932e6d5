"""How many hosts, and what each asks of Ray. Pure functions from a recipe and a cluster's facts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.schedules import make_schedule
from rayfed_kd.config import Recipe, ResourceRecipe
from rayfed_kd.errors import RecipeError

# An idle actor that has imported torch takes about 180 MB (Linux, Ray 2.60); with a model and data more.
HOST_BYTES = 400 * 2**20


@dataclass(frozen=True)
class Node:
    """What one machine of a cluster has."""

    cpus: float
    gpus: float
    memory_bytes: float


@dataclass(frozen=True)
class Plan:
    """The hosts of a run.

    Attributes:
        num_hosts: how many client actors.
        pinned: whether client k always runs on host k (one actor per client).
        keep_states: of how many clients a host keeps the latest state.
        client, server: what an actor asks for.
    """

    num_hosts: int
    pinned: bool
    keep_states: int
    client: ResourceRecipe
    server: ResourceRecipe


def plan_hosts(recipe: Recipe, nodes: Sequence[Node]) -> Plan:
    """The hosts for a recipe on these machines.

    Raises: RecipeError, with both numbers, if what is asked for does not fit: Ray would wait for ever.
    """
    clients, wanted = recipe.partition.clients, recipe.placement.clients_per_actor
    client, server = recipe.placement.client, recipe.placement.server
    room = _room(nodes, client, server)
    if wanted != "auto":
        hosts = math.ceil(clients / wanted)
        if hosts > room:
            raise RecipeError(
                f"placement.clients_per_actor = {wanted}: {clients} clients need {hosts} actors of "
                f"{_shown(client)} beside the server's {_shown(server)}, and {room} fit on "
                f"{_machines(nodes)}; expected {math.ceil(clients / room)} or more, or auto"
            )
        return Plan(hosts, wanted == 1, wanted, client, server)
    memory = sum(node.memory_bytes for node in nodes)
    if clients <= room and clients * HOST_BYTES <= memory / 2:
        return Plan(clients, True, 1, client, server)
    at_work = make_schedule(recipe).at_work
    return Plan(min(room, at_work, max(1, int(memory / 2 / HOST_BYTES))), False, 1, client, server)


def _room(nodes: Sequence[Node], client: ResourceRecipe, server: ResourceRecipe) -> int:
    """How many client actors fit beside the server, machine by machine."""
    best = 0
    for place in range(len(nodes)):
        fits = [_fit(node, client, server if index == place else None) for index, node in enumerate(nodes)]
        if fits[place] >= 0:
            best = max(best, sum(max(fit, 0) for fit in fits))
    if best < 1:
        raise RecipeError(
            f"placement: a server of {_shown(server)} and a client actor of {_shown(client)} "
            f"do not fit on {_machines(nodes)}"
        )
    return best


def _fit(node: Node, client: ResourceRecipe, server: ResourceRecipe | None) -> int:
    """How many client actors fit on a machine; -1 if the server does not."""
    cpus = node.cpus - (server.num_cpus if server else 0)
    gpus = node.gpus - (server.num_gpus if server else 0)
    if cpus < 0 or gpus < 0:
        return -1
    by_cpu = math.inf if client.num_cpus == 0 else cpus / client.num_cpus
    if client.num_gpus == 0:
        by_gpu = math.inf
    elif client.num_gpus >= 1:
        by_gpu = gpus // client.num_gpus
    else:  # a fraction lies on one device: two of 0.6 do not share one
        by_gpu = math.floor(gpus) * math.floor(1 / client.num_gpus + 1e-9)
        by_gpu += math.floor((gpus % 1) / client.num_gpus + 1e-9)
    by_memory = max(1, int(node.memory_bytes / HOST_BYTES))
    return int(min(by_cpu + 1e-9, by_gpu, by_memory))


def _shown(resources: ResourceRecipe) -> str:
    return f"{resources.num_cpus:g} CPU and {resources.num_gpus:g} GPU"


def _machines(nodes: Sequence[Node]) -> str:
    shown = [f"{node.cpus:g} CPU, {node.gpus:g} GPU, {node.memory_bytes / 2**30:.0f} GiB" for node in nodes]
    return f"{len(nodes)} machine(s) ({'; '.join(shown[:4])}{'; ...' if len(shown) > 4 else ''})"
