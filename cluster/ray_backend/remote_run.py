"""One run on Ray, seen from the launching process: it creates the actors and waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.ray_backend.client_actor import ClientActor
from cluster.ray_backend.dispatch.host_calls import LOST
from cluster.ray_backend.machines import prepare_machines, ray_nodes
from cluster.ray_backend.placement import Plan, actor_selector, bundles, plan_hosts
from cluster.ray_backend.resources import divided, total
from cluster.ray_backend.server_actor import ServerActor
from rayfed_kd.errors import RayfedError, RunError
from rayfed_kd.recipe.sections.placement import ResourceRecipe
from rayfed_kd.results.telling import as_teller
from rayfed_kd.setting.blueprint import Blueprint
from rayfed_kd.setting.setting import Setting

POLL_S = 0.1  # seconds between two looks at the server's lines and events
STOP_S = 60.0  # seconds for a stopped server to write its checkpoint and its tables
NOTICE_S, ROOM_S = 10.0, 600.0  # seconds without room on a busy cluster until a line says so; until an error

Event = Mapping[str, Any]


class ServerLostError(RunError):
    """The server's process or machine was lost. The run itself is sound and can be resumed."""


def is_lost(error: BaseException) -> bool:
    """Whether a process or a machine was lost, so that the run may go on from its checkpoint."""
    return isinstance(error, (ServerLostError, *LOST))


def planned_hosts(setting: Setting, share: int = 1) -> int:
    """How many client actors the run has on one part in `share` of the machines.

    Raises: RecipeError, naming request and machines, if they cannot hold it.
    """
    nodes = divided(ray_nodes(), share)
    return plan_hosts(setting.recipe, setting.schedule.concurrency, nodes).num_hosts


def run_on_ray(
    blueprint: Blueprint,
    setting: Setting,
    folder: str,
    on_event: Callable[[Event], None],
    *,
    share: int = 1,
    plan: Plan | None = None,
    stop: threading.Event | None = None,
    resume: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Create the actors in a placement group, and run.

    Args:
        blueprint: what the actors build the setting from.
        setting: the same in this process.
        folder: the run's folder.
        on_event: called with every round's event.
        share: the run may use one part in `share` of every machine.
        plan: the hosts, if the calling actor is in their placement group, as a trial is; None: planned here.
        stop: if another thread sets it, the run ends as after Ctrl-C.
        resume: continue from the folder's newest checkpoint.
        tell: called with each line for the user, as of damaged checkpoints or waiting for room.
    Returns: the summary, and the last evaluated models as arrays.
    Raises: RunError or what a method raised; KeyboardInterrupt after the run was ended cleanly.
    """
    recipe = setting.recipe
    blueprint, nodes = prepare_machines(blueprint, ray_nodes(), folder, recipe.placement.data, tell)
    if plan is None:
        plan = plan_hosts(recipe, setting.schedule.concurrency, divided(nodes, share))
        placed: AbstractContextManager[Any] = group_of(plan, stop, tell)
    else:
        own = ray.util.get_current_placement_group()
        assert own is not None, "a plan of its own belongs to a trial, which is in a placement group"
        placed = nullcontext(own)
    with placed as group:
        # The handles are held until the run is over: Ray ends an actor whose last handle is gone.
        server, _handles = _actors(group, plan, blueprint, folder, resume)
        return _watched(server, on_event, stop, tell)


@contextmanager
def group_of(plan: Plan, stop: threading.Event | None, tell: Callable[[str], None]) -> Iterator[Any]:
    """A placement group for the plan, as soon as there is room; None if its actors ask for nothing.

    Raises: RunError if there is none for too long.
    """
    wanted = bundles(plan)
    if not wanted.requests:
        yield None
        return
    group = placement_group(
        wanted.requests, strategy=plan.strategy.upper(), bundle_label_selector=wanted.selectors
    )
    try:
        began, shortage = time.monotonic(), ""
        # One second at a time, as `stop` comes from another thread and nothing else would wake this one.
        while not group.wait(1):
            waited = time.monotonic() - began
            if stop is not None and stop.is_set():
                raise KeyboardInterrupt
            if waited > NOTICE_S and not shortage:
                shortage = (
                    f"there is no room for {_summed(wanted.requests)}: others use the cluster, "
                    f"{_free()} are free"
                )
                tell(f"waiting up to {ROOM_S / 60:.0f} minutes: {shortage}")
            if waited > ROOM_S:
                raise RunError(shortage)
        yield group
    finally:
        remove_placement_group(group)


def _free() -> str:
    available = ray.available_resources()  # type: ignore[no-untyped-call]
    return ", ".join(f"{available.get(kind, 0.0):g} {kind}" for kind in ("CPU", "GPU"))


def _summed(requests: Sequence[Mapping[str, float]]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in total(requests).items())


def _actors(group: Any, plan: Plan, blueprint: Blueprint, folder: str, resume: bool) -> tuple[Any, list[Any]]:
    """The server, and what the caller must keep while it runs: the blueprint and the handles."""
    server_options = actor_options(plan, group)[0]
    shared, clients = ray.put(blueprint), client_actors(plan, group)
    server_actor = ServerActor.options(**server_options)  # type: ignore[attr-defined]
    # As an argument of its own the blueprint arrives as a value, in a list as a reference.
    return server_actor.remote(shared, [shared], clients, plan, folder, resume), [shared, *clients]


def client_actors(plan: Plan, group: Any) -> list[Any]:
    """The client actors of a plan in its placement group, not built yet, by number."""
    # They restart without end, and Ray itself repeats no call: the engine counts how often a step is tried.
    client_actor = ray.remote(ClientActor)
    return [
        client_actor.options(max_restarts=-1, **options).remote()
        for options in actor_options(plan, group)[1:]
    ]


def _watched(
    server: Any,
    on_event: Callable[[Event], None],
    stop: threading.Event | None,
    tell: Callable[[str], None],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the server, and pass on its events and lines."""
    running = server.run.remote()
    seen, told = (0, 0), as_teller(tell)
    told.phase("starting the actors")
    try:
        while True:
            done, _ = ray.wait([running], timeout=POLL_S)
            # After `done` was read: if the run is over, its last events are there, and are passed on, too.
            seen = _tell(server, seen, on_event, tell)
            told.phase("")  # the server has answered, so it is built, and the first round begins
            if stop is not None and stop.is_set():
                raise KeyboardInterrupt
            if done:
                summary = ray.get(running)
                return summary, ray.get(server.evaluated.remote())
    except KeyboardInterrupt:
        # Not waited for: `running` ends when the server has written what it has.
        server.stop.remote()
        ray.wait([running], timeout=STOP_S)
        _tell(server, seen, on_event, tell)
        raise
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise cause if isinstance(cause, RayfedError) else error from None
    except ray.exceptions.RayActorError as error:
        raise ServerLostError(f"the server was lost: {error}") from None


def _tell(
    server: Any, seen: tuple[int, int], on_event: Callable[[Event], None], tell: Callable[[str], None]
) -> tuple[int, int]:
    """Pass on the server's lines and events beyond the numbers `seen`; gives the numbers now."""
    try:
        lines, events = ray.get([server.lines.remote(seen[0]), server.events.remote(seen[1])])
    except ray.exceptions.RayError:  # the server is gone: `running` says why
        return seen
    for line in lines:
        tell(line)
    for event in events:
        on_event(event)
    return seen[0] + len(lines), seen[1] + len(events)


def actor_options(plan: Plan, group: Any) -> list[dict[str, Any]]:
    """Ray's options of the server and of each client actor: each in its own bundle, if it has one."""
    options = []
    for number, bundle in enumerate(bundles(plan).places):
        option: dict[str, Any] = resources_of(plan.actors[number])
        # An actor in a bundle is placed by the selector of the bundle; see `bundles`.
        if bundle < 0:
            option["label_selector"] = actor_selector(plan, number)
        else:
            option["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, bundle)
        options.append(option)
    return options


def resources_of(request: ResourceRecipe) -> dict[str, Any]:
    """Ray's options for a request, but for its labels."""
    own = dict(request.resources)
    return {"num_cpus": request.num_cpus, "num_gpus": request.num_gpus, "resources": own}
