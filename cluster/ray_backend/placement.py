"""How many hosts, and what each asks of Ray. Pure functions from a recipe and a cluster's facts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.schema import Recipe, ResourceRecipe
from rayfed_kd.setting.timing import make_schedule

# An idle actor that has imported torch takes about 180 MB (Linux, Ray 2.60); with a model and data more.
HOST_BYTES = 400 * 2**20
NODE_ID = "ray.io/node-id"


@dataclass(frozen=True)
class Node:
    """What one machine of a cluster has.

    Attributes:
        resources: the cluster's own, by name.
        labels: what `label_selector` asks about.
        id: Ray's.
        sees_folder: whether the run's folder lies there, so that the server may.
    """

    cpus: float
    gpus: float
    memory_bytes: float
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    id: str = ""
    sees_folder: bool = True

    @property
    def own(self) -> str:
        """Its resources of the cluster's own, to follow CPUs and GPUs: ", 5 licence"."""
        return _own(self.resources)

    def divided(self, share: int) -> Node:
        """One part in `share` of it, for one of so many runs at a time."""
        own = {name: amount / share for name, amount in self.resources.items()}
        return replace(
            self,
            cpus=self.cpus / share,
            gpus=self.gpus / share,
            memory_bytes=self.memory_bytes / share,
            resources=own,
        )

    def admits(self, asked: ResourceRecipe) -> bool:
        """Whether its labels are as the selector wants them."""
        return all(_selects(wanted, self.labels.get(label)) for label, wanted in asked.label_selector.items())


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
        """What each asks for: the server, then host 0, 1, ..."""
        return (self.server, *(self.resources(host) for host in range(self.num_hosts)))

    def resources(self, host: int) -> ResourceRecipe:
        """What a host's actor asks for."""
        return next((one.resources for one in self.classes if host in one.hosts), self.client)

    def hosts(self, client: int) -> tuple[int, ...]:
        """Where a client may run."""
        if self.pinned:
            return (client,)
        every = tuple(range(self.num_hosts))
        return next((one.hosts for one in self.classes if client in one.clients), every)


@dataclass(frozen=True)
class Bundles:
    """A placement group for a whole run.

    Attributes:
        asked, selectors: resource -> amount and label -> selector, of each bundle.
        places: in which bundle the server and host 0, 1, ... lie. A bundle must ask for something: an actor
            that asks for nothing has the place -1, any bundle.
    """

    asked: list[dict[str, float]]
    selectors: list[dict[str, str]]
    places: list[int]


def bundles(plan: Plan) -> Bundles:
    """The placement group of a plan's server and hosts."""
    found = Bundles([], [], [])
    for place, actor in enumerate(plan.actors):
        bundle = amounts(actor)
        found.places.append(len(found.asked) if bundle else -1)
        if bundle:
            found.asked.append(bundle)
            found.selectors.append(_selector(actor, plan.server_nodes if place == 0 else ()))
    return found


def amounts(actor: ResourceRecipe) -> dict[str, float]:
    """Ray's name of a resource -> how much an actor asks for; nothing that it asks nothing of."""
    asked = {"CPU": actor.num_cpus, "GPU": actor.num_gpus, **actor.resources}
    return {name: amount for name, amount in asked.items() if amount > 0}


def rooms(recipe: Recipe, nodes: Sequence[Node]) -> int:
    """How many runs fit with one client actor and a server each; one a machine if these ask for nothing."""
    needs = total(amounts(actor) for actor in (recipe.placement.client, recipe.placement.server))
    has = total({"CPU": node.cpus, "GPU": node.gpus, **node.resources} for node in nodes)
    fits = [int(has.get(name, 0.0) / need + 1e-9) for name, need in needs.items()]
    return max(1, min(fits, default=len(nodes)))


def total(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sum of amounts, name by name."""
    found: dict[str, float] = {}
    for part in parts:
        for name, amount in part.items():
            found[name] = found.get(name, 0.0) + amount
    return found


def _selector(actor: ResourceRecipe, nodes: Sequence[str]) -> dict[str, str]:
    on = {NODE_ID: f"in({', '.join(nodes)})"} if nodes else {}
    return {**actor.label_selector, **on}


def _selects(wanted: str, label: str | None) -> bool:
    """Ray's label selectors: value, !value, in(a, b), !in(a, b). A label that is not there is no value."""
    positive = not wanted.startswith("!")
    body = wanted.removeprefix("!")
    values = body[3:-1].replace(" ", "").split(",") if body.startswith("in(") else [body]
    return (label in values) == positive


def plan_hosts(recipe: Recipe, nodes: Sequence[Node]) -> Plan:
    """The hosts for a recipe on these machines.

    Raises: RecipeError, with both numbers, if what is asked for does not fit: Ray would wait for ever.
    """
    seen = tuple(node.id for node in nodes if node.sees_folder)
    plan = replace(_plan_hosts(recipe, nodes), strategy=recipe.placement.strategy)
    return plan if len(seen) == len(nodes) else replace(plan, server_nodes=seen)


def _plan_hosts(recipe: Recipe, nodes: Sequence[Node]) -> Plan:
    clients, wanted = recipe.partition.clients, recipe.placement.clients_per_actor
    client, server = recipe.placement.client, recipe.placement.server
    if recipe.placement.overrides:
        return _plan_classes(recipe, nodes)
    room = _room(recipe, nodes)
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
    at_work = make_schedule(recipe).concurrency
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
                f"and the server's {_shown(server)} do not fit on {_machines(nodes)}{_lacking(recipe, nodes)}"
            )
        return _plan(recipe, groups, counts, place.clients_per_actor)
    if not _fits(nodes, server, kinds, alone):
        raise RecipeError(
            f"placement.overrides: {_wanted(kinds, alone)} and the server's {_shown(server)} "
            f"do not fit on {_machines(nodes)}{_lacking(recipe, nodes)}"
        )
    memory = sum(node.memory_bytes for node in nodes)
    if _fits(nodes, server, kinds, all_own) and clients * HOST_BYTES <= memory / 2:
        return _plan(recipe, groups, all_own, 1)
    counts, most = alone, max(len(groups), make_schedule(recipe).concurrency)
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
        asked = ResourceRecipe(**override.model_dump(exclude={"clients"}))
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
    if not any(room.take(server, 0) for room in free if room.node.sees_folder):
        return False
    return all(any(room.take(asked, HOST_BYTES) for room in free) for asked in wanted)


class _Free:
    """What is left of a machine, GPU by GPU: a fraction lies on one device."""

    def __init__(self, node: Node) -> None:
        self.node, self._own = node, dict(node.resources)
        self._cpus, self._memory = node.cpus, max(node.memory_bytes, HOST_BYTES)
        whole = math.floor(node.gpus)
        self._gpus = [1.0] * whole + ([node.gpus - whole] if node.gpus > whole else [])

    def take(self, asked: ResourceRecipe, memory: float) -> bool:
        """Takes it if it is there."""
        devices = math.ceil(asked.num_gpus)
        share = min(asked.num_gpus, 1.0)
        having = [place for place, left in enumerate(self._gpus) if left >= share - 1e-9]
        fits = self._cpus >= asked.num_cpus - 1e-9 and self._memory >= memory and self.node.admits(asked)
        has = all(self._own.get(name, 0.0) >= amount - 1e-9 for name, amount in asked.resources.items())
        if not fits or not has or len(having) < devices:
            return False
        for name, amount in asked.resources.items():
            self._own[name] -= amount
        self._cpus, self._memory = self._cpus - asked.num_cpus, self._memory - memory
        for place in having[:devices]:
            self._gpus[place] -= share
        return True


def _wanted(kinds: Sequence[ResourceRecipe], counts: Sequence[int]) -> str:
    return ", ".join(f"{count} actor(s) of {_shown(kind)}" for kind, count in zip(kinds, counts, strict=True))


def _lacking(recipe: Recipe, nodes: Sequence[Node]) -> str:
    """Which labels and amounts no machine has, and who asks for them; empty if something else is short."""
    overrides = len(recipe.placement.overrides)
    asked = {"placement.server": recipe.placement.server}
    for place, (resources, _) in enumerate(_groups(recipe)):
        asked[f"placement.overrides.{place}" if place < overrides else "placement.client"] = resources
    told = []
    for who, one in asked.items():
        for label, wanted in one.label_selector.items():
            there = {node.labels.get(label) for node in nodes}
            if not any(_selects(wanted, value) for value in there):
                known = ", ".join(sorted(value for value in there if value is not None)) or "none"
                told.append(f"{who}.label_selector: {label} {wanted}, there is {known}")
        for name, amount in one.resources.items():
            most = max(node.resources.get(name, 0.0) for node in nodes)
            if most < amount:
                told.append(f"{who}.resources: {amount:g} {name}, a machine has {most:g} at most")
    return "".join(f"; {line}" for line in told)


def _room(recipe: Recipe, nodes: Sequence[Node]) -> int:
    """How many client actors fit beside the server, machine by machine."""
    client, server, best = recipe.placement.client, recipe.placement.server, 0
    for place in range(len(nodes)):
        fits = [_fit(node, client, server if index == place else None) for index, node in enumerate(nodes)]
        if fits[place] >= 0:
            best = max(best, sum(max(fit, 0) for fit in fits))
    if best < 1:
        raise RecipeError(
            f"placement: a server of {_shown(server)} and a client actor of {_shown(client)} "
            f"do not fit on {_machines(nodes)}{_lacking(recipe, nodes)}"
        )
    return best


def _fit(node: Node, client: ResourceRecipe, server: ResourceRecipe | None) -> int:
    """How many client actors fit on a machine; -1 if the server does not."""
    left = _left(node, server)
    if left is None:
        return -1
    if not node.admits(client):
        return 0
    by_cpu = math.inf if client.num_cpus == 0 else left.cpus / client.num_cpus
    if client.num_gpus == 0:
        by_gpu = math.inf
    elif client.num_gpus >= 1:
        by_gpu = left.gpus // client.num_gpus
    else:  # a fraction lies on one device: two of 0.6 do not share one
        by_gpu = math.floor(left.gpus) * math.floor(1 / client.num_gpus + 1e-9)
        by_gpu += math.floor((left.gpus % 1) / client.num_gpus + 1e-9)
    by_own = [left.resources.get(name, 0.0) / amount for name, amount in client.resources.items()]
    by_memory = max(1, int(node.memory_bytes / HOST_BYTES))
    return int(min(by_cpu + 1e-9, by_gpu, by_memory, *(own + 1e-9 for own in by_own)))


def _left(node: Node, server: ResourceRecipe | None) -> Node | None:
    """What the server leaves of a machine; None if it cannot be there."""
    if server is None:
        return node
    own = {name: has - server.resources.get(name, 0.0) for name, has in node.resources.items()}
    left = replace(node, cpus=node.cpus - server.num_cpus, gpus=node.gpus - server.num_gpus, resources=own)
    lacks = min(left.cpus, left.gpus, *own.values()) < 0 or set(server.resources) - set(own)
    return None if lacks or not node.sees_folder or not node.admits(server) else left


def _own(resources: Mapping[str, float]) -> str:
    return "".join(f", {amount:g} {name}" for name, amount in resources.items())


def _shown(resources: ResourceRecipe) -> str:
    labels = ", ".join(f"{label} {wanted}" for label, wanted in resources.label_selector.items())
    told = f"{resources.num_cpus:g} CPU and {resources.num_gpus:g} GPU{_own(resources.resources)}"
    return f"{told} where {labels}" if labels else told


def _machines(nodes: Sequence[Node]) -> str:
    shown = [_machine(node) for node in nodes]
    return f"{len(nodes)} machine(s) ({'; '.join(shown[:4])}{'; ...' if len(shown) > 4 else ''})"


def _machine(node: Node) -> str:
    labels = "".join(f", {label} {value}" for label, value in node.labels.items() if label != NODE_ID)
    unseen = "" if node.sees_folder else ", does not see the run's folder"
    has = f"{node.cpus:g} CPU, {node.gpus:g} GPU, {node.memory_bytes / 2**30:.0f} GiB"
    return f"{has}{node.own}{labels}{unseen}"
