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
class HostClass:
    """Hosts that ask for the same, and the clients that run on no others.

    Attributes:
        resources: what each of its actors asks for.
        clients, hosts: numbers, ascending.
    """

    resources: ResourceRecipe
    clients: tuple[int, ...]
    hosts: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """The hosts of a run.

    Attributes:
        num_hosts: how many client actors.
        pinned: whether client k always runs on host k (one actor per client).
        keep_states: of how many clients a host keeps the latest state.
        client, server: what an actor asks for.
        classes: where clients ask for different things, which hosts are whose; empty: all are alike.
    """

    num_hosts: int
    pinned: bool
    keep_states: int
    client: ResourceRecipe
    server: ResourceRecipe
    classes: tuple[HostClass, ...] = ()

    def resources(self, host: int) -> ResourceRecipe:
        """What a host's actor asks for."""
        return next((one.resources for one in self.classes if host in one.hosts), self.client)

    def hosts(self, client: int) -> tuple[int, ...]:
        """Where a client may run."""
        if self.pinned:
            return (client,)
        every = tuple(range(self.num_hosts))
        return next((one.hosts for one in self.classes if client in one.clients), every)


def bundles(plan: Plan) -> tuple[list[dict[str, float]], list[int]]:
    """A placement group for a whole run: its bundles, and where the server and host 0, 1, ... lie.

    A bundle must ask for something: an actor that asks for nothing has the place -1, any bundle.
    """
    asked, places = list[dict[str, float]](), list[int]()
    for actor in (plan.server, *(plan.resources(host) for host in range(plan.num_hosts))):
        bundle = {"CPU": actor.num_cpus, "GPU": actor.num_gpus}
        bundle = {name: amount for name, amount in bundle.items() if amount > 0}
        places.append(len(asked) if bundle else -1)
        asked += [bundle] if bundle else []
    return asked, places


def plan_hosts(recipe: Recipe, nodes: Sequence[Node]) -> Plan:
    """The hosts for a recipe on these machines.

    Raises: RecipeError, with both numbers, if what is asked for does not fit: Ray would wait for ever.
    """
    clients, wanted = recipe.partition.clients, recipe.placement.clients_per_actor
    client, server = recipe.placement.client, recipe.placement.server
    if recipe.placement.overrides:
        return _plan_classes(recipe, nodes)
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


def _plan_classes(recipe: Recipe, nodes: Sequence[Node]) -> Plan:
    """Hosts where some clients ask for more than others: each class has at least one.

    `auto` gives every client its own where all fit, else adds one host after the other to the class
    with the most clients a host, as long as it fits and the cohort could use it.
    """
    place, clients = recipe.placement, recipe.partition.clients
    groups = _groups(recipe)
    server, alone = place.server, [1] * len(groups)
    all_own = [len(members) for _, members in groups]
    kinds = [resources for resources, _ in groups]
    if place.clients_per_actor != "auto":
        counts = [math.ceil(own / place.clients_per_actor) for own in all_own]
        if not _fits(nodes, server, kinds, counts):
            raise RecipeError(
                f"placement.clients_per_actor = {place.clients_per_actor}: {_wanted(kinds, counts)} "
                f"and the server's {_shown(server)} do not fit on {_machines(nodes)}"
            )
        return _plan(recipe, groups, counts, place.clients_per_actor)
    if not _fits(nodes, server, kinds, alone):
        raise RecipeError(
            f"placement.overrides: {_wanted(kinds, alone)} and the server's {_shown(server)} "
            f"do not fit on {_machines(nodes)}"
        )
    memory = sum(node.memory_bytes for node in nodes)
    if _fits(nodes, server, kinds, all_own) and clients * HOST_BYTES <= memory / 2:
        return _plan(recipe, groups, all_own, 1)
    counts, most = alone, max(len(groups), make_schedule(recipe).at_work)
    while sum(counts) < most:
        order = sorted(range(len(counts)), key=lambda i: -all_own[i] / counts[i])
        larger = [[n + (i == c) for i, n in enumerate(counts)] for c in order if counts[c] < all_own[c]]
        fitting = next((found for found in larger if _fits(nodes, server, kinds, found)), None)
        if fitting is None:
            break
        counts = fitting
    return _plan(recipe, groups, counts, 0)


def _groups(recipe: Recipe) -> list[tuple[ResourceRecipe, list[int]]]:
    """What is asked for, and by which clients; those without an override last."""
    found: list[tuple[ResourceRecipe, list[int]]] = []
    for override in recipe.placement.overrides:
        asked = ResourceRecipe(num_cpus=override.num_cpus, num_gpus=override.num_gpus)
        found.append((asked, sorted(override.clients)))
    taken = {client for _, members in found for client in members}
    rest = [client for client in range(recipe.partition.clients) if client not in taken]
    return [*found, (recipe.placement.client, rest)] if rest else found


def _plan(
    recipe: Recipe, groups: Sequence[tuple[ResourceRecipe, list[int]]], counts: Sequence[int], packed: int
) -> Plan:
    """`packed`: clients an actor; 1: one each, so that client k is host k; 0: as many as it gets."""
    classes, first = [], 0
    for (resources, members), count in zip(groups, counts, strict=True):
        hosts = tuple(members) if packed == 1 else tuple(range(first, first + count))
        classes.append(HostClass(resources, tuple(members), hosts))
        first += count
    place = recipe.placement
    return Plan(first, packed == 1, max(packed, 1), place.client, place.server, tuple(classes))


def _fits(
    nodes: Sequence[Node], server: ResourceRecipe, kinds: Sequence[ResourceRecipe], counts: Sequence[int]
) -> bool:
    """Whether the server and so many actors of each kind have room, each on the first machine that has some.

    Largest first; what fits only in another order is taken not to fit, as Ray places as greedily.
    """
    free = [_Free(node) for node in nodes]
    actors = [kind for kind, count in zip(kinds, counts, strict=True) for _ in range(count)]
    wanted = sorted(actors, key=lambda asked: (-asked.num_gpus, -asked.num_cpus))
    if not any(room.take(server, 0) for room in free):
        return False
    return all(any(room.take(asked, HOST_BYTES) for room in free) for asked in wanted)


class _Free:
    """What is left of a machine, GPU by GPU: a fraction lies on one device."""

    def __init__(self, node: Node) -> None:
        self._cpus, self._memory = node.cpus, max(node.memory_bytes, HOST_BYTES)
        whole = math.floor(node.gpus)
        self._gpus = [1.0] * whole + ([node.gpus - whole] if node.gpus > whole else [])

    def take(self, asked: ResourceRecipe, memory: float) -> bool:
        """Takes it if it is there."""
        devices = math.ceil(asked.num_gpus)
        share = min(asked.num_gpus, 1.0)
        having = [place for place, left in enumerate(self._gpus) if left >= share - 1e-9]
        fits = self._cpus >= asked.num_cpus - 1e-9 and self._memory >= memory
        if not fits or len(having) < devices:
            return False
        self._cpus, self._memory = self._cpus - asked.num_cpus, self._memory - memory
        for place in having[:devices]:
            self._gpus[place] -= share
        return True


def _wanted(kinds: Sequence[ResourceRecipe], counts: Sequence[int]) -> str:
    return ", ".join(f"{count} actor(s) of {_shown(kind)}" for kind, count in zip(kinds, counts, strict=True))


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
