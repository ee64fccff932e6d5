"""Plans how many hosts a run has, what each requests of Ray, and how many runs have room at a time.

Pure functions of recipe and machines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rayfed_kd.cluster.ray_backend.resources import (
    HOST_BYTES,
    NODE_ID,
    Node,
    amounts,
    count_fitting,
    divided,
    selects,
    shown_amounts,
    shown_machines,
    shown_request,
    total,
)
from rayfed_kd.errors import RecipeError, counted
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.sections.placement import ResourceRecipe


@dataclass(frozen=True)
class Plan:
    """The hosts of a run.

    Attributes:
        num_hosts: number of hosts.
        pinned: whether client k always runs on host k (one actor per client).
        keep_states: of how many clients a host keeps the latest state.
        client, server: the request of each client actor, and that of the server.
        strategy: pack or spread.
        server_nodes: Ray's ids of the machines that the server may be on; empty: any.
    """

    num_hosts: int
    pinned: bool
    keep_states: int
    client: ResourceRecipe
    server: ResourceRecipe
    strategy: str = "pack"
    server_nodes: tuple[str, ...] = ()

    @property
    def actors(self) -> tuple[ResourceRecipe, ...]:
        """The actors' requests: the server's, then the hosts' by number."""
        return (self.server, *[self.client] * self.num_hosts)

    def described(self, clients: int) -> str:
        """The actors for people: "server actor, 1 CPU; 3 client actors for 10 clients, 0.25 GPU each".

        Args:
            clients: number of the run's clients.
        """
        each = " each" if self.num_hosts > 1 else ""
        return (
            f"server actor, {shown_amounts(self.server)}; {counted(self.num_hosts, 'client actor')} for "
            f"{counted(clients, 'client')}, {shown_amounts(self.client)}{each}"
        )

    def name(self, host: int) -> str:
        """A host's name in Ray's lists: `client-7`, or `clients-3` if all clients may run on it."""
        return f"client{'' if self.pinned else 's'}-{host}"


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
        recipe: says what an actor requests.
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


def _lacking(recipe: Recipe, nodes: Sequence[Node]) -> str:
    """Which labels and amounts no machine has, and who asks for them; empty if something else is short."""
    requests = {"placement.server": recipe.placement.server, "placement.client": recipe.placement.client}
    lines = []
    for who, request in requests.items():
        for label, wanted in request.label_selector.items():
            values = {node.labels.get(label) for node in nodes}
            if not any(selects(wanted, value) for value in values):
                known = ", ".join(sorted(value for value in values if value is not None)) or "none"
                lines.append(f"{who}.label_selector: {label} {wanted}, there is {known}")
        for name, amount in request.resources.items():
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


def runs_at_a_time(option: str, limit: int | None, runs: int, recipe: Recipe, nodes: Sequence[Node]) -> int:
    """How many of so many runs go on at a time.

    Args:
        option: what the user asks by, as --jobs.
        limit: the user's number of them; None: as many as have room.
        runs: how many there are.
        recipe: of the runs.
        nodes: the machines.
    Raises: RecipeError, naming the option, if as many as were asked for have no room.
    """
    if limit is None:
        return rooms(recipe, nodes, runs)
    wanted = min(runs, limit)
    if wanted > 1 and not _has_room(recipe, divided(nodes, wanted)):
        raise RecipeError(
            f"{option} {wanted}: one part in {wanted} of every machine does not hold a server of "
            f"{shown_request(recipe.placement.server)} and a client actor of "
            f"{shown_request(recipe.placement.client)}, on {shown_machines(nodes)}; "
            f"expected at most {rooms(recipe, nodes, wanted)}"
        )
    return wanted


def rooms(recipe: Recipe, nodes: Sequence[Node], most: int) -> int:
    """How many runs at a time have room, each on its part of every machine.

    Args:
        recipe: of the runs.
        nodes: the machines.
        most: as many as are wanted.
    Returns: at least 1, also where not even one has room: planning it says why.
    """
    needs = total(amounts(actor) for actor in (recipe.placement.client, recipe.placement.server))
    has = total({"CPU": node.cpus, "GPU": node.gpus, **node.resources} for node in nodes)
    # 1e-9 here and below: requests such as 0.1 CPU are inexact in floats.
    fits = [int(has.get(name, 0.0) / need + 1e-9) for name, need in needs.items()]
    bound = min(most, *fits) if fits else min(most, len(nodes))
    # All machines together may have room for more than the parts of each: an actor lies on one of them.
    return next((runs for runs in range(bound, 1, -1) if _has_room(recipe, divided(nodes, runs))), 1)


def _has_room(recipe: Recipe, nodes: Sequence[Node]) -> bool:
    try:
        plan_hosts(recipe, 1, nodes)
    except RecipeError:
        return False
    return True
