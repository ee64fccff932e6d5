"""Prepares a cluster's machines for a run: checks their code, and sends the data where it is missing.

One small task runs on each machine, all at the same time. A single machine, as a private Ray is, is not
checked.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayfed_kd.cluster.ray_backend.resources import Node
from rayfed_kd.data.cache import is_whole, locate_entry, pack_entry, unpack_entry
from rayfed_kd.errors import DataError, RayfedError, RecipeError, RunError
from rayfed_kd.protocol import Array
from rayfed_kd.recipe.registry import find_modules, load_object
from rayfed_kd.setting.blueprint import Blueprint
from rayfed_kd.setting.code_identity import REMEDY, check_identity, differences, identity

Tell = Callable[[str], None]
How = Literal["auto", "shared", "ship"]


@dataclass(frozen=True)
class Seen:
    """What a process on a machine can import and read.

    Attributes:
        machine: the machine's name.
        fault: why it cannot take part, as other code or a method that it cannot import; empty if it can.
        instruction_set: CPU capability by which torch chooses kernels; results depend on it in the last bits.
        data, cached: whether the decoded data is complete at the driver's path, and in its own cache folder.
        folder: whether it can read the run's folder.
    """

    machine: str
    fault: str
    instruction_set: str
    data: bool
    cached: bool
    folder: bool


def ray_nodes() -> list[Node]:
    """The live machines of the Ray cluster that this process is connected to."""
    nodes = []
    for node in ray.nodes():  # type: ignore[no-untyped-call]
        if node["Alive"]:
            has = dict(node["Resources"])
            cpus, gpus, memory = (has.pop(name, 0.0) for name in ("CPU", "GPU", "memory"))
            has.pop("object_store_memory", None)
            # Ray itself gives every machine a resource "node:IP"; it is not the cluster's own.
            resources = {name: amount for name, amount in has.items() if not name.startswith("node:")}
            nodes.append(Node(cpus, gpus, memory, resources, node["Labels"], node["NodeID"]))
    return nodes


def prepare_machines(
    blueprint: Blueprint, nodes: Sequence[Node], folder: str, how: How, tell: Tell
) -> tuple[Blueprint, list[Node]]:
    """Check every machine, and send it the data if it needs it.

    Args:
        blueprint: the run's blueprint.
        nodes: the machines.
        folder: the run's folder.
        how: the recipe's `placement.data`.
        tell: called with a line if machines' results may differ in the last bit.
    Returns: the blueprint as every machine can build it; the machines, with whether they see the folder.
    Raises: RunError if a machine runs other code or cannot import it; DataError if data cannot get there.
    """
    if len(nodes) == 1:
        return blueprint, list(nodes)
    # Put once: the blueprint holds the partition, and every machine fetches it.
    seen = _on_each(nodes, look, ray.put(blueprint), folder)
    if fault := next((report.fault for report in seen if report.fault), ""):
        raise RunError(fault)
    kinds = {report.instruction_set: report.machine for report in seen}
    if len(kinds) > 1:
        sets = ", ".join(f"{machine} {kind}" for kind, machine in kinds.items())
        tell(f"machines of several instruction sets ({sets}): results repeat on machines of one kind only")
    looked = [replace(node, sees_folder=report.folder) for node, report in zip(nodes, seen, strict=True)]
    return _with_data(blueprint, looked, seen, how), looked


def look(blueprint: Blueprint, folder: str) -> Seen:
    """Examine this machine; runs as a task on each."""
    import torch

    fault = ""
    find_modules(blueprint.import_paths)
    try:
        check_identity(blueprint.identity, blueprint.own_code)
        load_object(blueprint.method, "method.name")
    except RecipeError as error:
        fault = f"machine {platform.node()}: {error}; {REMEDY}"
    except RunError as error:
        fault = str(error)
    entry = Path(blueprint.dataset_folder)
    return Seen(
        machine=platform.node(),
        fault=fault,
        instruction_set=torch.backends.cpu.get_cpu_capability(),
        data=is_whole(entry),
        cached=is_whole(locate_entry(Path(entry.name))),
        folder=(Path(folder) / "config.yaml").is_file(),
    )


def _with_data(blueprint: Blueprint, nodes: Sequence[Node], seen: Sequence[Seen], how: How) -> Blueprint:
    entry = Path(blueprint.dataset_folder)
    places = to_be_sent(seen, how, entry)
    if places is None:
        return blueprint
    if places:
        files = pack_entry(entry)
        missing = [nodes[place] for place in places]
        # One object per file, put once; as arguments of their own they arrive as arrays.
        _on_each(missing, install, entry.name, list(files), *map(ray.put, files.values()))
    # A bare name: each machine finds the entry in its own cache folder (`locate_entry`).
    return replace(blueprint, dataset_folder=entry.name)


def to_be_sent(seen: Sequence[Seen], how: How, entry: Path) -> list[int] | None:
    """Places in `seen` of the machines that need the data sent; None if all map it at the driver's path.

    Raises: DataError if `how` is "shared" and a machine does not see the data.
    """
    blind = [report.machine for report in seen if not report.data]
    if how == "shared" and blind:
        raise DataError(
            f"placement.data = shared: {', '.join(blind)} cannot see {entry}; expected $RAYFED_KD_CACHE on "
            "storage that all machines see, or placement.data = ship"
        )
    if how == "shared" or (how == "auto" and not blind):
        return None
    return [place for place, report in enumerate(seen) if not report.cached]


@dataclass(frozen=True)
class Surveyed:
    """A machine as `doctor` shows it.

    Attributes:
        node: what it has.
        address: where it is.
        machine, gpus: its name, and what torch sees there.
        difference: how the code that it runs is not this process's; empty if it is.
    """

    node: Node
    address: str
    machine: str
    gpus: Sequence[str]
    difference: str


def survey() -> list[Surveyed]:
    """Examine every machine of the Ray cluster that this process is connected to.

    Raises: RunError if one cannot import this package, or is lost.
    """
    nodes = ray_nodes()
    return [
        Surveyed(node, _address(node), machine, gpus, differences(identity(), known))
        for node, (machine, gpus, known) in zip(nodes, _on_each(nodes, probe), strict=True)
    ]


def probe() -> tuple[str, list[str], Mapping[str, str]]:
    """On a machine: its name, its GPUs, and the identity of the code that it runs."""
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return platform.node(), gpus, identity()


def install(name: str, files: Sequence[str], *contents: Array) -> None:
    """Write an entry of the data cache into this machine's cache folder.

    Args:
        name: the entry's name.
        files: its files' names.
        contents: their contents, in the same order.
    Raises: DataError if it cannot be written.
    """
    unpack_entry(locate_entry(Path(name)), dict(zip(files, contents, strict=True)))


def _on_each(nodes: Sequence[Node], work: Callable[..., Any], *args: Any) -> list[Any]:
    """What `work` gives on every machine, in the order of `nodes`; it runs on all at the same time.

    Raises: what it raised there; RunError if a machine cannot import it or is lost.
    """
    # All are started before the first is waited for.
    refs = [_start(work, node, *args) for node in nodes]
    return [_result(node, ref) for node, ref in zip(nodes, refs, strict=True)]


def _start(work: Callable[..., Any], node: Node, *args: Any) -> Any:
    # soft=False: a probe on another machine would tell nothing of this one. It asks for no CPU, so that it
    # also runs where all are taken.
    affinity = NodeAffinitySchedulingStrategy(node.id, soft=False)
    return ray.remote(num_cpus=0, max_retries=0)(work).options(scheduling_strategy=affinity).remote(*args)


def _result(node: Node, ref: Any) -> Any:
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RayfedError):
            raise error.cause from None
        raise RunError(f"machine {_address(node)}: {_last_line(error)}; {REMEDY}") from None
    except ray.exceptions.RayError as error:
        raise RunError(f"machine {_address(node)}: {_last_line(error)}") from None


def _address(node: Node) -> str:
    """Where a machine is, for people."""
    addresses = {entry["NodeID"]: entry["NodeManagerAddress"] for entry in ray.nodes()}  # type: ignore[no-untyped-call]
    return str(addresses.get(node.id, node.id))


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
