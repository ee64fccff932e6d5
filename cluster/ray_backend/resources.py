"""Machines' resources, actors' requests, and whether these fit. Plain arithmetic without Ray."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rayfed_kd.cluster.engine.logical_gpus import is_logical
from rayfed_kd.recipe.sections.placement import ResourceRecipe

# An idle actor that has imported torch takes about 180 MB (Linux, Ray 2.60); with a model and data more.
HOST_BYTES = 400 * 2**20
NODE_ID = "ray.io/node-id"  # the label that Ray gives every machine


@dataclass(frozen=True)
class Node:
    """What one machine of a cluster has.

    Attributes:
        cpus, gpus: as Ray counts them; fractions in a share of a machine.
        memory_bytes: the machine's `memory` resource in Ray, in bytes.
        resources: amounts of the cluster's own resources, by name.
        labels: label -> value, which `label_selector` asks about.
        id: Ray's id of the machine.
        sees_folder: whether the machine sees the run's folder; the server runs only where it does.
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

    def admits(self, request: ResourceRecipe) -> bool:
        """Whether the machine's labels match the request's label selector."""
        return all(
            selects(wanted, self.labels.get(label)) for label, wanted in request.label_selector.items()
        )


def divided(nodes: Iterable[Node], runs: int) -> tuple[Node, ...]:
    """The part of every machine that each of so many simultaneous runs may use."""
    return tuple(
        replace(
            node,
            cpus=node.cpus / runs,
            gpus=node.gpus / runs,
            memory_bytes=node.memory_bytes / runs,
            resources={name: amount / runs for name, amount in node.resources.items()},
        )
        for node in nodes
    )


def amounts(actor: ResourceRecipe) -> dict[str, float]:
    """Ray's name of a resource -> the requested amount; resources with a request of 0 are left out."""
    amount_by_name = {"CPU": actor.num_cpus, "GPU": actor.num_gpus, **actor.resources}
    return {name: amount for name, amount in amount_by_name.items() if amount > 0}


def total(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sum of amounts, name by name."""
    sums: dict[str, float] = {}
    for part in parts:
        for name, amount in part.items():
            sums[name] = sums.get(name, 0.0) + amount
    return sums


def selects(wanted: str, label: str | None) -> bool:
    """Whether a label matches one of Ray's selectors: value, !value, in(a, b), !in(a, b).

    Args:
        wanted: the selector.
        label: the machine's label; None: it has none, which only negated selectors match.
    """
    positive = not wanted.startswith("!")
    body = wanted.removeprefix("!")
    values = body[3:-1].replace(" ", "").split(",") if body.startswith("in(") else [body]
    return (label in values) == positive


def count_fitting(node: Node, client: ResourceRecipe, server: ResourceRecipe | None) -> int:
    """How many client actors fit on a machine.

    Args:
        client: each actor's request.
        server: the server's request, which is on this machine, too; None: it is elsewhere.
    Returns: the number; -1 if the server does not fit.
    """
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
    return int(min(by_cpu + 1e-9, by_gpu, by_memory, *(fit + 1e-9 for fit in by_own)))


def _left(node: Node, server: ResourceRecipe | None) -> Node | None:
    """What the server leaves of a machine; None if it cannot be there."""
    if server is None:
        return node
    rest = {name: has - server.resources.get(name, 0.0) for name, has in node.resources.items()}
    left = replace(node, cpus=node.cpus - server.num_cpus, gpus=node.gpus - server.num_gpus, resources=rest)
    lacks = min(left.cpus, left.gpus, *rest.values()) < 0 or set(server.resources) - set(rest)
    return None if lacks or not node.sees_folder or not node.admits(server) else left


def _own(resources: Mapping[str, float]) -> str:
    return "".join(f", {amount:g} {name}" for name, amount in resources.items())


def shown_amounts(request: ResourceRecipe) -> str:
    """What an actor has, for a run's header: "1 CPU and 0.25 GPU", or "logical GPU" if it is only counted."""
    kind = "logical GPU" if is_logical() else "GPU"
    parts = [f"{amount:g} {kind if name == 'GPU' else name}" for name, amount in amounts(request).items()]
    return " and ".join(parts) or "no CPU of its own"


def shown_request(resources: ResourceRecipe) -> str:
    """What an actor asks for, for people: "1 CPU and 0.5 GPU"."""
    labels = ", ".join(f"{label} {wanted}" for label, wanted in resources.label_selector.items())
    words = f"{resources.num_cpus:g} CPU and {resources.num_gpus:g} GPU{_own(resources.resources)}"
    return f"{words} where {labels}" if labels else words


def shown_machines(nodes: Sequence[Node]) -> str:
    """The machines and what they have, for people; four of them at most."""
    texts = [_shown_machine(node) for node in nodes]
    return f"{len(nodes)} machine(s) ({'; '.join(texts[:4])}{'; ...' if len(texts) > 4 else ''})"


def _shown_machine(node: Node) -> str:
    labels = "".join(f", {label} {value}" for label, value in node.labels.items() if label != NODE_ID)
    unseen = "" if node.sees_folder else ", does not see the run's folder"
    has = f"{node.cpus:g} CPU, {node.gpus:g} GPU, {node.memory_bytes / 2**30:.0f} GiB"
    return f"{has}{node.own}{labels}{unseen}"
