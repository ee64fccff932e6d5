"""Plans how many hosts a run has and what each requests of Ray, by pure functions of recipe and machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rayfed_kd.cluster.ray_backend.resources import (
    HOST_BYTES,
    NODE_ID,
    FreeResources,
    Node,
    amounts,
    count_fitting,
    counted,
    selects,
    shown_amounts,
    shown_machines,
    shown_request,
)
from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.sections.placement import ResourceRecipe

MOST_NAMED = 20  # clients in an actor's name


@dataclass(frozen=True)
class HostClass:
    """Hosts with equal requests, and the clients that run only on them.

    Attributes:
        resources: the request of each of its actors.
        clients, hosts: numbers, ascending.
    """

    resources: ResourceRecipe
    clients: tuple[int, ...]
    hosts: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """The hosts of a run.

    Attributes:
        num_hosts: number of hosts.
        pinned: whether client k always runs on host k (one actor per client).
        keep_states: of how many clients a host keeps the latest state.
        client, server: the request of a client actor without an override, and that of the server.
        classes: with overrides, which clients run on which hosts; empty: all hosts are alike.
        strategy: pack or spread.
        server_nodes: Ray's ids of the machines that the server may be on; empty: any.
    """

    num_hosts: int
    pinned: bool
    keep_states: int
    client: ResourceRecipe
    server: ResourceRecipe
    classes: tuple[HostClass, ...] = ()
    strategy: str = "pack"
    server_nodes: tuple[str, ...] = ()

    @property
    def actors(self) -> tuple[ResourceRecipe, ...]:
        """The actors' requests: the server's, then the hosts' by number."""
        return (self.server, *map(self.resources, range(self.num_hosts)))

    def resources(self, host: int) -> ResourceRecipe:
        """The request of a host's actor."""
        return next((one.resources for one in self.classes if host in one.hosts), self.client)

    def described(self, clients: int) -> str:
        """The actors for people: "server actor, 1 CPU; 3 client actors for 10 clients, 0.25 GPU each".

        Args:
            clients: number of the run's clients.
        """
        kinds = [(one.resources, len(one.hosts), len(one.clients)) for one in self.classes]
        kinds = kinds or [(self.client, self.num_hosts, clients)]
        return "; ".join(
            [
                f"server actor, {shown_amounts(self.server)}",
                *(
                    f"{counted(hosts, 'client actor')} for {counted(members, 'client')}, "
                    f"{shown_amounts(request)}{' each' if hosts > 1 else ''}"
                    for request, hosts, members in kinds
                ),
            ]
        )

    def name(self, host: int) -> str:
        """A host's name in Ray's lists: `client-7`; `clients-3: 7 12` if it has a choice of clients."""
        if self.pinned:
            return f"client-{host}"
        own = next((one.clients for one in self.classes if host in one.hosts), ())
        more = " ..." if len(own) > MOST_NAMED else ""
        return f"clients-{host}" + (f": {' '.join(map(str, own[:MOST_NAMED]))}{more}" if own else "")

    def hosts(self, client: int) -> tuple[int, ...]:
        """Numbers of the hosts that a client may run on."""
        if self.pinned:
            return (client,)
        every = tuple(range(self.num_hosts))
        return next((one.hosts for one in self.classes if client in one.clients), every)


@dataclass(frozen=True)
class Bundles:
    """A placement group for a whole run.

    Attributes:
        requests, selectors: resource -> amount and label -> selector, of each bundle.
        places: in which bundle the server and each actor lie. A bundle must ask for something: an actor
            that asks for nothing has the place -1, any bundle.
    """

    requests: list[dict[str, float]]
    selectors: list[dict[str, str]]
    places: list[int]


def bundles(plan: Plan) -> Bundles:
    """The placement group of a plan's server and hosts."""
    group = Bundles([], [], [])
    for place, request in enumerate(map(amounts, plan.actors)):
        group.places.append(len(group.requests) if request else -1)
        if request:
            group.requests.append(request)
            group.selectors.append(actor_selector(plan, place))
    return group


def actor_selector(plan: Plan, place: int) -> dict[str, str]:
    """Ray's label selector of a plan's actor: its own, and the machines that the server may be on."""
    on = {NODE_ID: f"in({', '.join(plan.server_nodes)})"} if place == 0 and plan.server_nodes else {}
    return {**plan.actors[place].label_selector, **on}


def plan_hosts(recipe: Recipe, at_work: int, nodes: Sequence[Node]) -> Plan:
    """Plan the hosts for a recipe on these machines.

    Args:
        recipe: says what an actor requests, and for which clients.
        at_work: most clients at work at a time, the schedule's `concurrency`: more hosts would stand idle.
        nodes: the machines.
    Raises: RecipeError if the requests do not fit, as Ray would wait for ever; it names both amounts.
    """
    seen = tuple(node.id for node in nodes if node.sees_folder)
    plan = replace(_plan_hosts(recipe, at_work, nodes), strategy=recipe.placement.strategy)
    return plan if len(seen) == len(nodes) else replace(plan, server_nodes=seen)


def _plan_hosts(recipe: Recipe, at_work: int, nodes: Sequence[Node]) -> Plan:
    clients, wanted = recipe.partition.clients, recipe.placement.clients_per_actor
    client, server = recipe.placement.client, recipe.placement.server
    if recipe.placement.overrides:
        return _plan_classes(recipe, at_work, nodes)
    room = _room(recipe, nodes)
    if wanted != "auto":
        hosts = math.ceil(clients / wanted)
        if hosts > room:
            raise RecipeError(
                f"placement.clients_per_actor = {wanted}: {clients} clients need {hosts} actors of "
                f"{shown_request(client)} beside the server's {shown_request(server)}, and {room} fit on "
                f"{shown_machines(nodes)}; expected {math.ceil(clients / room)} or more, or auto"
                f"{_smaller_request(recipe, hosts, nodes)}"
            )
        return Plan(hosts, wanted == 1, wanted, client, server)
    memory = sum(node.memory_bytes for node in nodes)
    if clients <= room and clients * HOST_BYTES <= memory / 2:
        return Plan(clients, True, 1, client, server)
    return Plan(min(room, at_work, max(1, int(memory / 2 / HOST_BYTES))), False, 1, client, server)


def _smaller_request(recipe: Recipe, hosts: int, nodes: Sequence[Node]) -> str:
    """The largest usual share of a core by which so many actors fit; empty if there is none."""
    for share in (0.5, 0.25, 0.2, 0.1, 0.05, 0.02, 0.01):
        client = recipe.placement.client.model_copy(update={"num_cpus": share})
        placement = recipe.placement.model_copy(update={"client": client})
        changed = recipe.model_copy(update={"placement": placement})
        if share < recipe.placement.client.num_cpus and _room(changed, nodes) >= hosts:
            return f"; or placement.client.num_cpus={share:g}, by which {hosts} fit"
    return ""


def _plan_classes(recipe: Recipe, at_work: int, nodes: Sequence[Node]) -> Plan:
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
                f"and the server's {shown_request(server)} do not fit on {shown_machines(nodes)}"
                f"{_lacking(recipe, nodes)}"
            )
        return _plan(recipe, groups, counts, place.clients_per_actor)
    if not _fits(nodes, server, kinds, alone):
        raise RecipeError(
            f"placement.overrides: {_wanted(kinds, alone)} and the server's {shown_request(server)} "
            f"do not fit on {shown_machines(nodes)}{_lacking(recipe, nodes)}"
        )
    memory = sum(node.memory_bytes for node in nodes)
    if _fits(nodes, server, kinds, all_own) and clients * HOST_BYTES <= memory / 2:
        return _plan(recipe, groups, all_own, 1)
    counts, most = alone, max(len(groups), at_work)
    while sum(counts) < most:
        order = sorted(range(len(counts)), key=lambda i: -all_own[i] / counts[i])
        larger = [[n + (i == c) for i, n in enumerate(counts)] for c in order if counts[c] < all_own[c]]
        fitting = next((one for one in larger if _fits(nodes, server, kinds, one)), None)
        if fitting is None:
            break
        counts = fitting
    return _plan(recipe, groups, counts, 0)


def _groups(recipe: Recipe) -> list[tuple[ResourceRecipe, list[int]]]:
    """The requests, and the clients of each; those without an override are last."""
    groups: list[tuple[ResourceRecipe, list[int]]] = []
    for override in recipe.placement.overrides:
        request = ResourceRecipe(**override.model_dump(exclude={"clients"}))
        groups.append((request, sorted(override.clients)))
    taken = {client for _, members in groups for client in members}
    rest = [client for client in range(recipe.partition.clients) if client not in taken]
    return [*groups, (recipe.placement.client, rest)] if rest else groups


def _plan(
    recipe: Recipe, groups: Sequence[tuple[ResourceRecipe, list[int]]], counts: Sequence[int], packed: int
) -> Plan:
    """Make the plan. `packed`: clients per actor; 1: client k is on host k; 0: `counts` alone decides."""
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
    free = [FreeResources(node) for node in nodes]
    actors = [kind for kind, count in zip(kinds, counts, strict=True) for _ in range(count)]
    wanted = sorted(actors, key=lambda request: (-request.num_gpus, -request.num_cpus))
    if not any(room.take(server, 0) for room in free if room.node.sees_folder):
        return False
    return all(any(room.take(request, HOST_BYTES) for room in free) for request in wanted)


def _wanted(kinds: Sequence[ResourceRecipe], counts: Sequence[int]) -> str:
    return ", ".join(
        f"{count} actor(s) of {shown_request(kind)}" for kind, count in zip(kinds, counts, strict=True)
    )


def _lacking(recipe: Recipe, nodes: Sequence[Node]) -> str:
    """Which labels and amounts no machine has, and who asks for them; empty if something else is short."""
    overrides = len(recipe.placement.overrides)
    requests = {"placement.server": recipe.placement.server}
    for place, (resources, _) in enumerate(_groups(recipe)):
        requests[f"placement.overrides.{place}" if place < overrides else "placement.client"] = resources
    lines = []
    for who, one in requests.items():
        for label, wanted in one.label_selector.items():
            values = {node.labels.get(label) for node in nodes}
            if not any(selects(wanted, value) for value in values):
                known = ", ".join(sorted(value for value in values if value is not None)) or "none"
                lines.append(f"{who}.label_selector: {label} {wanted}, there is {known}")
        for name, amount in one.resources.items():
            most = max(node.resources.get(name, 0.0) for node in nodes)
            if most < amount:
                lines.append(f"{who}.resources: {amount:g} {name}, a machine has {most:g} at most")
    return "".join(f"; {line}" for line in lines)


def _room(recipe: Recipe, nodes: Sequence[Node]) -> int:
    """How many client actors fit beside the server, machine by machine."""
    client, server, best = recipe.placement.client, recipe.placement.server, 0
    for place in range(len(nodes)):
        fits = [
            count_fitting(node, client, server if index == place else None)
            for index, node in enumerate(nodes)
        ]
        if fits[place] >= 0:
            best = max(best, sum(max(fit, 0) for fit in fits))
    if best < 1:
        raise RecipeError(
            f"placement: a server of {shown_request(server)} and a client actor of {shown_request(client)} "
            f"do not fit on {shown_machines(nodes)}{_lacking(recipe, nodes)}"
        )
    return best
