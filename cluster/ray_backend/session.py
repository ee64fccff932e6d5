"""Ray for the launching process: it connects to a cluster or starts a private one, and ends it."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import psutil
import ray

from rayfed_kd.cluster.engine.logical_gpus import logical_gpus
from rayfed_kd.cluster.ray_backend.lean_node import lean_start
from rayfed_kd.cluster.ray_backend.private_ray import (
    RAYS,
    private_environment,
    private_folder,
    set_variables,
)
from rayfed_kd.errors import RecipeError, shortened
from rayfed_kd.recipe.schema import Recipe

QUIET: Mapping[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
LEFT_STARTING = "ray, left while it starts"  # name of a session's thread that nobody waits for
# For the workers that start with a private Ray. They import this module, on other cores than this process,
# which reads the data meanwhile. Then they wait, and Ray would end them after an idle second.
WORKERS = {
    "RAY_preload_python_modules": "rayfed_kd.cluster.ray_backend.client_actor",
    "RAY_idle_worker_killing_time_threshold_ms": "120000",
}
CONNECT_S = 10.0  # a machine that drops packets, as behind a firewall, never answers
TOKEN_HINT = (
    "a cluster with tokens wants RAY_AUTH_MODE=token and its own token, in RAY_AUTH_TOKEN, in the file named "
    "by RAY_AUTH_TOKEN_PATH or in ~/.ray/auth_token; one without tokens wants neither"
)


class RaySession:
    """Ray for one run: the cluster at `address` or RAY_ADDRESS, else a private one here that ends with it.

    It starts in a thread, so that a recipe can be checked meanwhile: enter it, do other work, then `ready`.
    If the `with` block ends while Ray still starts, it does not wait: the thread then ends what it started.

    Args:
        recipe: for the server's share of cores.
        address: HOST:PORT, or None.
        runs: how many servers there will be at a time; no more than cores are counted.
        environments: whether processes with environments of their own will be asked for, as Ray Tune does: a
            private Ray then has the agents that make them.
    Raises: RecipeError from `ready` if nothing answers at `address`, as Ray would hang, or if this process is
        connected to the Ray at another address.
    """

    def __init__(
        self, recipe: Recipe, address: str | None, runs: int = 1, *, environments: bool = False
    ) -> None:
        self._recipe, self._runs, self._environments = recipe, runs, environments
        self._asked, self._address = address, address or os.environ.get("RAY_ADDRESS")
        self._foreign = ray.is_initialized()  # in a notebook or a test: somebody else's, left as it is
        self._thread = threading.Thread(target=self._live, name="ray")
        self._started, self._over = threading.Event(), threading.Event()
        self._under_way = threading.Event()  # Ray's own processes are started, or cannot be
        self._error: BaseException | None = None

    def __enter__(self) -> RaySession:
        self._thread.start()
        try:
            # What the caller does next, as to import torch, would keep this thread from Python's lock.
            self._under_way.wait()
        except BaseException as error:  # Ctrl-C
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def ready(self) -> None:
        """Wait until Ray is connected.

        Raises: RecipeError if nothing answers at the address, or it is not that of this process's Ray.
        """
        self._started.wait()
        if self._error is not None:
            raise self._error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._over.set()
        if self._started.is_set():
            self._thread.join()
            # Ray takes the process's answer to SIGTERM away as it ends, so that it would die without a word.
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)
        else:
            self._thread.name = LEFT_STARTING

    def _live(self) -> None:
        """Start and end Ray in one thread: Ray's processes are killed when the thread that made them ends."""
        if self._foreign:
            # RAY_ADDRESS is left alone: this process's Ray was started in spite of it.
            if self._asked is not None:
                self._error = _mismatch(self._asked)
            self._under_way.set()
            self._started.set()
            return
        with ExitStack() as block:
            try:
                if self._address is None:
                    self._start(block.enter_context(private_folder()))
                else:
                    self._under_way.set()
                    _connect(self._address, "--address" if self._asked else "RAY_ADDRESS =")
            except BaseException as error:  # raised again by `ready`, in the caller's thread
                self._error = error
            self._under_way.set()
            self._started.set()
            self._over.wait()
            ray.shutdown()

    def _start(self, folder: Path) -> None:
        """Start a private Ray in a folder of its own."""
        _prepare_environment()
        # The server sleeps while clients train: its share comes on top of the machine's cores.
        cores = psutil.cpu_count() or 1
        servers = min(self._runs, cores) * math.ceil(self._recipe.placement.server.num_cpus)
        options: dict[str, Any] = {"num_cpus": cores + servers, "_temp_dir": str(folder / RAYS)}
        if gpus := logical_gpus():
            options["num_gpus"] = gpus
        wanted = {} if self._environments else {name: os.environ.get(name, WORKERS[name]) for name in WORKERS}
        # A Ray with environments needs the agents that a lean one leaves out.
        lean = nullcontext() if self._environments else lean_start(self._under_way.set)
        with private_environment(), set_variables(wanted), lean:
            try:
                ray.init(address="local", include_dashboard=False, **options, **QUIET)
            except Exception as error:  # Ray raises a plain Exception where a node times out
                raise RecipeError(
                    f"Ray did not start on this machine: {shortened(' '.join(str(error).split()), 300)}; try "
                    "again, or expected --local, which needs no Ray"
                ) from error


def _mismatch(address: str) -> RecipeError | None:
    """What is wrong with an address, where this process is connected to a Ray; None: it is that Ray's."""
    ours = ray.get_runtime_context().gcs_address
    if address == "auto" or _resolved(address) == _resolved(ours):
        return None
    return RecipeError(
        f"--address {shortened(address)}: this process is connected to the Ray at {ours}; expected that "
        "address, or none, or ray.shutdown() before"
    )


def _resolved(address: str) -> tuple[str, str]:
    """Host and port, with the host's number where it has one: localhost is 127.0.0.1."""
    host, _, port = address.rpartition(":")
    try:
        return socket.gethostbyname(host), port
    except (OSError, UnicodeError):
        return host, port


def _prepare_environment() -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # 0: Ray leaves CUDA_VISIBLE_DEVICES alone for actors without a GPU (the default of recent versions).
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


def _connect(address: str, option: str) -> None:
    _prepare_environment()
    check_address(address, option)
    try:
        ray.init(address=address, **QUIET)
    # A cluster that just ends, or asks for a token; another Ray or Python version; no token where one is due.
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.AuthenticationError) as error:
        raise RecipeError(f"{option} {address}: {error}; {TOKEN_HINT}") from None


def check_address(address: str, option: str = "--address") -> None:
    """Check that a Ray answers at an address, as `ray.init` would hang, or wait for minutes, if none does.

    Args:
        address: HOST:PORT; "auto" is left to Ray.
        option: where it stands, for messages.
    Raises: RecipeError if nothing answers there, a web server does, or it is not HOST:PORT.
    """
    if address == "auto":
        return
    if "://" in address:  # of the Ray Client, whose process has no object store of its own
        raise RecipeError(f"{option} {shortened(address)}: expected HOST:PORT of Ray's head, without ://")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise RecipeError(f"{option} {shortened(address)}: expected HOST:PORT")
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_S) as line:
            line.settimeout(CONNECT_S)
            line.sendall(b"GET / HTTP/1.0\r\n\r\n")  # Ray's head speaks HTTP/2 only
            if line.recv(6) == b"HTTP/1":
                raise RecipeError(
                    f"{option} {address}: a web server answers there, as Ray's dashboard does; expected the "
                    "port of Ray's head, 6379 unless it was started with another"
                )
    except (OSError, OverflowError, UnicodeError) as error:  # UnicodeError: of a name that can be no host's
        raise RecipeError(
            f"{option} {shortened(address)}: no Ray answers there ({error}); expected HOST:PORT"
        ) from None


def run_together(
    runs: Sequence[Callable[[int, threading.Event], None]], recipes: Sequence[Recipe], jobs: int | None
) -> None:
    """Call every run in a thread, several at a time.

    Args:
        runs: each is called with n, because one part in n of the cluster is its own, and with an event that
            stops it. It blocks until it is over.
        recipes: of the rows, which say what a client actor and a server request.
        jobs: runs at a time; None: as many as have room for a server and one client actor each.
    Raises: RecipeError if `jobs` runs have no room; what a run raised, once the others are over;
        KeyboardInterrupt after all were ended.
    """
    # Not above: they import torch, and Ray should start before this process does.
    from rayfed_kd.cluster.ray_backend.machines import ray_nodes
    from rayfed_kd.cluster.ray_backend.placement import runs_at_a_time

    nodes = ray_nodes()
    together = min(runs_at_a_time("--jobs", jobs, len(runs), recipe, nodes) for recipe in recipes)
    stop = threading.Event()
    with ThreadPoolExecutor(together, "run") as pool:
        waiting = [pool.submit(run, together, stop) for run in runs]
        try:
            wait(waiting, return_when=FIRST_EXCEPTION)
        except KeyboardInterrupt:
            stop.set()
            raise
        finally:
            for future in waiting:  # of those that run or have ended it stops none
                future.cancel()
    for future in waiting:
        if not future.cancelled():
            future.result()
