"""The launching process's part: it connects to Ray or starts it, creates the actors, and waits for them."""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import psutil
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.ray_backend.actors import ClientActor, ServerActor
from cluster.ray_backend.host_calls import LOST
from cluster.ray_backend.machines import prepare_machines, ray_nodes
from cluster.ray_backend.placement import Plan, bundles, plan_hosts, rooms
from cluster.ray_backend.private_ray import private_environment
from cluster.ray_backend.resources import total
from rayfed_kd.errors import RayfedError, RecipeError, RunError, shortened
from rayfed_kd.recipe.schema import Recipe, ResourceRecipe
from rayfed_kd.setting.blueprint import Blueprint

POLL_S = 0.1
STOP_S = 60.0
CONNECT_S = 10.0
TOKEN_HINT = (
    "a cluster with tokens wants RAY_AUTH_MODE=token and its token, in RAY_AUTH_TOKEN, in the file named by "
    "RAY_AUTH_TOKEN_PATH or in ~/.ray/auth_token"
)
NOTICE_S, ROOM_S = 10.0, 600.0  # of waiting for room on a busy cluster

Event = Mapping[str, Any]


class ServerLostError(RunError):
    """The server's process or machine was lost. The run itself is sound and can be resumed."""


def is_lost(error: BaseException) -> bool:
    """Whether a process or a machine was lost, so that the run may go on from its checkpoint."""
    return isinstance(error, (ServerLostError, *LOST))


class RaySession:
    """Ray for one run: the cluster at `address` or RAY_ADDRESS, else a private one here that ends with it.

    It starts in a thread, so that a recipe can be checked meanwhile: enter it, do other work, then `ready`.
    Left with an error it does not wait for what still starts: the thread ends that, too.

    Args:
        recipe: for the server's share of cores.
        address: HOST:PORT, or None.
        runs: how many servers there will be at a time; no more than cores are counted.
    Raises: RecipeError from `ready` if nothing answers at `address`: Ray would hang.
    """

    def __init__(self, recipe: Recipe, address: str | None, runs: int = 1) -> None:
        self._recipe, self._runs = recipe, runs
        self._address = address or os.environ.get("RAY_ADDRESS")
        self._foreign = ray.is_initialized()  # in a notebook or a test: somebody else's, left as it is
        self._thread = threading.Thread(target=self._live, name="ray")
        self._started, self._over = threading.Event(), threading.Event()
        self._error: BaseException | None = None

    def __enter__(self) -> RaySession:
        self._thread.start()
        return self

    def ready(self) -> None:
        """Wait until Ray is connected.

        Raises: RecipeError if nothing answers at the address.
        """
        self._started.wait()
        if self._error is not None:
            raise self._error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._over.set()
        if self._started.is_set():
            self._thread.join()

    def _live(self) -> None:
        """Start to end in one thread: Ray's processes are killed when the thread that made them ends."""
        if self._foreign:
            self._started.set()
            return
        try:
            _connect(self._recipe, self._address, self._runs)
        except BaseException as error:  # raised again by `ready`, in the caller's thread
            self._error = error
        self._started.set()
        self._over.wait()
        ray.shutdown()


def _connect(recipe: Recipe, address: str | None, runs: int) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # 0: Ray leaves CUDA_VISIBLE_DEVICES alone for actors without a GPU (the default of recent versions).
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is not None:
        _probe(address)
        try:
            ray.init(address=address, **quiet)
        except ConnectionError as error:  # a cluster that just ends, or asks for a token: Ray does not say
            raise RecipeError(f"--address {address}: {error}; {TOKEN_HINT}") from None
        except (RuntimeError, ValueError, ray.exceptions.AuthenticationError) as error:
            # Another Ray or Python version, RAY_AUTH_MODE=token without a token.
            raise RecipeError(f"--address {address}: {error}") from None
        return
    # The server sleeps while clients train: its share comes on top of the machine's cores.
    cores = psutil.cpu_count() or 1
    cpus = cores + min(runs, cores) * math.ceil(recipe.placement.server.num_cpus)
    with private_environment():
        try:
            ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
        except Exception as error:  # Ray raises a plain Exception where a node times out
            raise RecipeError(
                f"Ray did not start on this machine: {shortened(' '.join(str(error).split()), 300)}; try "
                "again, or expected --local, which needs no Ray"
            ) from error


def _probe(address: str) -> None:
    if address == "auto" or "://" in address:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise RecipeError(f"--address {shortened(address)}: expected HOST:PORT")
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_S) as line:
            line.settimeout(CONNECT_S)
            line.sendall(b"GET / HTTP/1.0\r\n\r\n")  # Ray's head speaks HTTP/2 only
            if line.recv(6) == b"HTTP/1":
                raise RecipeError(
                    f"--address {address}: a web server answers there, as Ray's dashboard does; expected the "
                    "port of Ray's head, 6379 unless it was started with another"
                )
    except (OSError, OverflowError, UnicodeError) as error:  # UnicodeError: of a name that can be no host's
        raise RecipeError(
            f"--address {shortened(address)}: no Ray answers there ({error}); expected HOST:PORT"
        ) from None


def run_together(
    runs: Sequence[Callable[[int, threading.Event], None]], recipe: Recipe, jobs: int | None
) -> None:
    """Calls every run with its share of the cluster (one in so many) and an event that stops it.

    Args:
        runs: each blocks until it is over.
        recipe: says what a client actor and a server need.
        jobs: at a time; None: as many as have room for one client actor each beside their server.
    Raises: what a run raised, once the others are over; KeyboardInterrupt after all were ended.
    """
    together = min(len(runs), jobs or rooms(recipe, ray_nodes()))
    stop = threading.Event()
    with ThreadPoolExecutor(together, "run") as pool:
        waiting = [pool.submit(run, together, stop) for run in runs]
        try:
            done, _ = wait(waiting, return_when=FIRST_EXCEPTION)
        except KeyboardInterrupt:
            stop.set()
            for future in waiting:
                future.cancel()
            raise
        for future in waiting:
            if future not in done:
                future.cancel()
    for future in waiting:
        if not future.cancelled():
            future.result()


def check_room(recipe: Recipe, share: int = 1) -> None:
    """Raises RecipeError, with both numbers, if one part in `share` of the cluster cannot hold the run."""
    plan_hosts(recipe, [node.divided(share) for node in ray_nodes()])


def run_on_ray(
    blueprint: Blueprint,
    recipe: Recipe,
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
        blueprint: the setting to build.
        recipe: the run's recipe.
        folder: the run's folder.
        on_event: called with every round's event.
        share: this run may use one part in so many of the cluster.
        plan: the hosts, if the calling actor is in their placement group; None: planned here.
        stop: if another thread sets it, the run ends as after Ctrl-C.
        resume: continue from the folder's newest checkpoint.
        tell: called with each line for the user, as of damaged checkpoints or waiting for room.
    Returns: the summary, and the last evaluated models as arrays.
    Raises: RunError or what a method raised; KeyboardInterrupt after the run was ended cleanly.
    """
    blueprint, nodes = prepare_machines(blueprint, ray_nodes(), folder, recipe.placement.data, tell)
    if plan is None:
        plan = plan_hosts(recipe, [node.divided(share) for node in nodes])
        placed: AbstractContextManager[Any] = _placed(plan, stop, tell)
    else:
        own = ray.util.get_current_placement_group()
        assert own is not None, "a plan of its own belongs to a trial, which is in a placement group"
        placed = nullcontext(own)
    with placed as group:
        server, _kept = _actors(group, plan, blueprint, folder, resume)
        return _watched(server, on_event, stop, tell)


@contextmanager
def _placed(plan: Plan, stop: threading.Event | None, tell: Callable[[str], None]) -> Iterator[Any]:
    """A placement group for the plan, as soon as there is room; None if its actors ask for nothing.

    Raises: RunError if there is none for too long.
    """
    found = bundles(plan)
    if not found.asked:
        yield None
        return
    group = placement_group(
        found.asked, strategy=plan.strategy.upper(), bundle_label_selector=found.selectors
    )
    try:
        began, told = time.monotonic(), ""
        while not group.wait(1):
            waited = time.monotonic() - began
            if stop is not None and stop.is_set():
                raise KeyboardInterrupt
            if waited > NOTICE_S and not told:
                told = (
                    f"there is no room for {_summed(found.asked)}: others use the cluster, {_free()} are free"
                )
                tell(f"waiting up to {ROOM_S / 60:.0f} minutes: {told}")
            if waited > ROOM_S:
                raise RunError(told)
        yield group
    finally:
        remove_placement_group(group)


def _free() -> str:
    there = ray.available_resources()  # type: ignore[no-untyped-call]
    return ", ".join(f"{there.get(kind, 0.0):g} {kind}" for kind in ("CPU", "GPU"))


def _summed(asked: Sequence[Mapping[str, float]]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in total(asked).items())


def _actors(group: Any, plan: Plan, blueprint: Blueprint, folder: str, resume: bool) -> tuple[Any, list[Any]]:
    """The server, and what the caller must keep while it runs: the blueprint and the handles."""
    server_options, *host_options = _options(plan, group)
    shared = ray.put(blueprint)
    # Restarted for ever: how often a step is tried again is the engine's to count.
    client_actor = ray.remote(ClientActor)
    clients = [client_actor.options(max_restarts=-1, **options).remote() for options in host_options]
    server_actor = ServerActor.options(**server_options)  # type: ignore[attr-defined]
    return server_actor.remote(shared, [shared], clients, plan, folder, resume), [shared, *clients]


def _watched(
    server: Any,
    on_event: Callable[[Event], None],
    stop: threading.Event | None,
    tell: Callable[[str], None],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the server, and pass on its events and lines."""
    running = server.run.remote()
    seen = (0, 0)
    try:
        while True:
            done, _ = ray.wait([running], timeout=POLL_S)
            seen = _tell(server, seen, on_event, tell)
            if stop is not None and stop.is_set():
                raise KeyboardInterrupt
            if done:
                summary = ray.get(running)
                return summary, ray.get(server.evaluated.remote())
    except KeyboardInterrupt:
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
    """Hands on the server's lines and events beyond those `seen`; gives how many there are now."""
    try:
        lines, events = ray.get([server.told.remote(seen[0]), server.events.remote(seen[1])])
    except ray.exceptions.RayError:  # the server is gone: `running` says why
        return seen
    for line in lines:
        tell(line)
    for event in events:
        on_event(event)
    return seen[0] + len(lines), seen[1] + len(events)


def _options(plan: Plan, group: Any) -> list[dict[str, Any]]:
    """Ray's options of the server and of host 0, 1, ...: each in its own bundle, if it has one."""
    options = []
    for actor, place in zip(plan.actors, bundles(plan).places, strict=True):
        option: dict[str, Any] = _resources(actor)
        if place < 0:
            option["label_selector"] = dict(actor.label_selector)
        else:
            option["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, place)
        options.append(option)
    return options


def _resources(asked: ResourceRecipe) -> dict[str, Any]:
    own = dict(asked.resources)
    return {"num_cpus": asked.num_cpus, "num_gpus": asked.num_gpus, "resources": own}
