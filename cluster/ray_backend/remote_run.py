"""One run on Ray, seen from the launching process: it creates the actors and waits for them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rayfed_kd.cluster.ray_backend.client_actor import ClientActor
from rayfed_kd.cluster.ray_backend.dispatch.host_calls import LOST, cause_of_loss
from rayfed_kd.cluster.ray_backend.liveness import RayProcesses, memory_hint
from rayfed_kd.cluster.ray_backend.machines import prepare_machines, ray_nodes
from rayfed_kd.cluster.ray_backend.placement import Plan, actor_selector, bundles, plan_hosts
from rayfed_kd.cluster.ray_backend.resources import divided, total
from rayfed_kd.cluster.ray_backend.server_actor import BEGUN, ServerActor
from rayfed_kd.errors import RayfedError, RunError
from rayfed_kd.results.telling import Event, as_teller
from rayfed_kd.setting.blueprint import Blueprint
from rayfed_kd.setting.setting import Setting

POLL_S = 0.2  # seconds between two looks at `stop` and at Ray's processes
STOP_S = 60.0  # seconds for a stopped server to write its checkpoint and its tables
LAST_S = 1.5  # the same where Ray has lost its GCS: without it a server goes on for a minute
ENDING_S = 5.0  # seconds for Ray's processes to end, too, where a server that was to stop has ended by itself
NOTICE_S, ROOM_S = 10.0, 600.0  # seconds without room on a busy cluster until a line says so; until an error


class ServerLostError(RunError):
    """The server's process or machine was lost. The run itself is sound and can be resumed."""


class RayLostError(ServerLostError):
    """Ray's own processes have ended, so nothing can be asked of them any more."""


def is_lost(error: BaseException) -> bool:
    """Whether a process or a machine was lost, so that the run may go on from its checkpoint."""
    return isinstance(error, (ServerLostError, *LOST))


def planned(setting: Setting, share: int = 1) -> Plan:
    """The run's actors on one part in `share` of the machines.

    Raises: RecipeError, naming request and machines, if they cannot hold it.
    """
    nodes = divided(ray_nodes(), share)
    return plan_hosts(setting.recipe, setting.schedule.concurrency, nodes)


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
        trial_group = ray.util.get_current_placement_group()
        assert trial_group is not None, "a plan of its own belongs to a trial, which is in a placement group"
        placed = nullcontext(trial_group)
    with placed as group:
        server, clients = _actors(group, plan, folder)
        running = server.run.remote(server.take.remote(blueprint), clients, plan, folder, resume)
        try:
            return _watched(server, running, on_event, stop, tell)
        finally:
            # All is written. By themselves they would take torch down for a second, or live on in a
            # traceback, which holds their handles.
            if not isinstance(sys.exception(), RayLostError):
                for actor in (server, *clients):
                    ray.kill(actor)


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
                asked = ", ".join(f"{amount:g} {name}" for name, amount in total(wanted.requests).items())
                available = ray.available_resources()  # type: ignore[no-untyped-call]
                free = ", ".join(f"{available.get(kind, 0.0):g} {kind}" for kind in ("CPU", "GPU"))
                shortage = f"there is no room for {asked}: others use the cluster, {free} are free"
                tell(f"waiting up to {ROOM_S / 60:.0f} minutes: {shortage}")
            if waited > ROOM_S:
                raise RunError(shortage)
        yield group
    finally:
        # Without a GCS this would take a minute.
        if not isinstance(sys.exception(), RayLostError):
            remove_placement_group(group)


def _actors(group: Any, plan: Plan, folder: str) -> tuple[Any, list[Any]]:
    """The actors of a run's server and clients."""
    # The names are a run's own: several runs of a cluster may have a `server`.
    namespace = f"rayfed-kd {Path(folder).name} {uuid4().hex[:8]}"
    server_options, *client_options = actor_options(plan, group)
    server_actor = ServerActor.options(  # type: ignore[attr-defined]
        name="server", namespace=namespace, **server_options
    )
    # First, so that it gets a worker that started with Ray: no round can begin without it.
    server, client_actor = server_actor.remote(), ray.remote(ClientActor)
    # They restart without end, and Ray itself repeats no call: the engine counts how often a step is tried.
    clients = [
        client_actor.options(name=plan.name(host), namespace=namespace, max_restarts=-1, **options).remote()
        for host, options in enumerate(client_options)
    ]
    return server, clients


def _watched(
    server: Any,
    running: Any,
    on_event: Callable[[Event], None],
    stop: threading.Event | None,
    tell: Callable[[str], None],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Pass on a server's events and lines until its run is over."""
    as_teller(tell).phase("starting the actors")
    news, processes = _News(server, on_event, tell), RayProcesses()
    try:
        while True:
            _check_ray(processes)
            done = news.pass_on(running)
            if stop is not None and stop.is_set():
                raise KeyboardInterrupt
            if done:
                news.rest()
                return ray.get(running)  # type: ignore[no-any-return]
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise cause if isinstance(cause, RayfedError) else error from None
    except LOST as error:
        raise ServerLostError(f"the server {cause_of_loss(error).splitlines()[0]}") from None
    except BaseException as end:  # Ctrl-C, a listener's error, or a lost Ray: what is complete is written
        server.stop.remote()  # `running` ends when the server has written what it has
        if isinstance(end, RayLostError):
            ray.wait([running], timeout=LAST_S)
        else:
            _wait_for_the_last(running, processes)
        if isinstance(end, KeyboardInterrupt):
            news.rest()
        raise


def _check_ray(processes: RayProcesses) -> None:
    if lost := processes.lost():
        raise RayLostError(f"{lost}; it may have been killed{memory_hint()}")


def _wait_for_the_last(running: Any, processes: RayProcesses) -> None:
    """Wait until a stopped server has written what it has.

    A SIGTERM to all processes, as of `timeout` or a scheduler, reaches Ray's own, too. Nothing can be asked
    of it then, and it would take a minute to say so.

    Raises: RayLostError if Ray's processes end meanwhile.
    """
    until = time.monotonic() + STOP_S
    while not ray.wait([running], timeout=POLL_S)[0] and time.monotonic() < until:
        _check_ray(processes)
    with suppress(Exception):
        ray.get(running, timeout=0)
        return
    # What ended the server may end Ray next, and each call to a Ray without its GCS takes a minute.
    until = time.monotonic() + ENDING_S
    while time.monotonic() < until:
        _check_ray(processes)
        time.sleep(POLL_S)


class _News:
    """Passes on a server's lines and events. One question is open at a time; it waits for something new."""

    def __init__(self, server: Any, on_event: Callable[[Event], None], tell: Callable[[str], None]) -> None:
        self._server, self._on_event, self._tell = server, on_event, tell
        self._seen = (0, 0)
        self._question = self._ask()

    def pass_on(self, running: Any) -> bool:
        """Wait for news or the end of the run, for a moment. Returns: whether the run is over."""
        done, _ = ray.wait([running, self._question], timeout=POLL_S)
        if self._question in done:
            self._hear()
            self._question = self._ask()
        return running in done

    def rest(self) -> None:
        """Pass on what came last, when the run is over."""
        self._question = self._ask(wait=False)
        self._hear()

    def _ask(self, *, wait: bool = True) -> Any:
        return self._server.news.remote(*self._seen, wait)

    def _hear(self) -> None:
        try:
            lines, events = ray.get(self._question)
        except ray.exceptions.RayError:  # the server is gone: `running` says why
            return
        self._seen = self._seen[0] + len(lines), self._seen[1] + len(events)
        for line in lines:
            if line == BEGUN:
                as_teller(self._tell).phase("")
            else:
                self._tell(line)
        for event in events:
            try:
                self._on_event(event)
            except StopIteration:
                self._server.end.remote(event["round"])


def actor_options(plan: Plan, group: Any) -> list[dict[str, Any]]:
    """Ray's options of the server and of each client actor: each in its own bundle, if it has one."""
    options = []
    for number, bundle in enumerate(bundles(plan).places):
        request = plan.actors[number]
        option: dict[str, Any] = {"num_cpus": request.num_cpus, "num_gpus": request.num_gpus}
        option["resources"] = dict(request.resources)
        # An actor in a bundle is placed by the selector of the bundle; see `bundles`.
        if bundle < 0:
            option["label_selector"] = actor_selector(plan, number)
        else:
            option["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, bundle)
        options.append(option)
    return options
