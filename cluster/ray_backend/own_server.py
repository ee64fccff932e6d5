"""A run whose server is the launching process itself, beside a private Ray that has the clients' hosts.

On one machine a server's actor would be one process more: it would start, load torch and build the setting
again, while the launching process, which has done all that to check the recipe, only waits. On a cluster
the server is an actor (`remote_run`), as the launching process may be far from the hosts.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import ray
import torch

from cluster.ray_backend.engine import RayEngine
from cluster.ray_backend.machines import ray_nodes
from cluster.ray_backend.placement import Plan, plan_hosts
from cluster.ray_backend.remote_run import STOP_S, client_actors, group_of
from cluster.ray_backend.session import is_private
from cluster.server.assembly import AssembledRun, assemble
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.results.telling import as_teller
from rayfed_kd.setting.blueprint import Blueprint
from rayfed_kd.setting.setting import Setting

Outcome = tuple[dict[str, Any], dict[str, Any]]
Listener = Callable[[Any], None]


def serves_here(recipe: Recipe) -> bool:
    """Whether the launching process is a run's server: on a private Ray, unless the server wants a GPU.

    Ray assigns GPUs, resources and labelled machines to actors only.
    """
    server = recipe.placement.server
    return is_private() and not (server.num_gpus or server.resources or server.label_selector)


def run_own_server(
    blueprint: Blueprint,
    setting: Setting,
    folder: str,
    on_event: Callable[[Mapping[str, Any]], None],
    *,
    resume: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Create the client actors, and run the server's loop in a thread.

    Args:
        blueprint: what the actors build the setting from.
        setting: the same in this process.
        folder: the run's folder.
        on_event: called with every round's event, in this thread.
        resume: continue from the folder's newest checkpoint.
        tell: called with each line for the user, in this thread.
    Returns: the summary, and the last evaluated models as arrays.
    Raises: RunError or what a method raised; KeyboardInterrupt after the run was ended cleanly.
    """
    plan = plan_hosts(setting.recipe, setting.schedule.concurrency, ray_nodes())
    threads = torch.get_num_threads()
    try:
        # The server's share stays reserved in the group: other runs on this Ray must not count on it.
        with group_of(plan, None, tell) as group, _event_loop() as loop:
            server, clients = _Server(setting, Path(folder), resume=resume), client_actors(plan, group)
            server.use(clients, ray.put(blueprint), plan, loop)
            return server.run(on_event, tell)
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread. At the end its tasks are cancelled."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="event-loop", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        asyncio.run_coroutine_threadsafe(_cancel_tasks(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _cancel_tasks() -> None:
    # Again and again: a call that ends lets the engine start one that waited.
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Server:
    """The server's loop in a thread of its own, and what it says, to be heard in the calling thread.

    Args:
        setting: what runs.
        folder: the run's folder.
        resume: whether to continue from the newest checkpoint in it.
    """

    def __init__(self, setting: Setting, folder: Path, *, resume: bool) -> None:
        self._setting, self._folder, self._resume = setting, folder, resume
        self._said = SimpleQueue[tuple[Listener, Any] | None]()  # None: the run is over
        self._stopping = False
        self._assembled: AssembledRun | None = None
        self._tell: Listener = lambda line: None

    def use(self, clients: list[Any], blueprint: Any, plan: Plan, loop: asyncio.AbstractEventLoop) -> None:
        """Make the engine; the arguments are as in `RayEngine.of`."""
        self._engine = RayEngine.of(
            self._setting,
            clients,
            blueprint,
            plan,
            loop,
            tell=lambda line: self._said.put((self._tell, line)),
        )

    def run(self, on_event: Listener, tell: Listener) -> Outcome:
        """Run to the end, passing on events and lines in this thread.

        Raises: what the run raised; what a listener raised, after the run was stopped as by Ctrl-C.
        """
        told, self._tell = as_teller(tell), tell
        told.phase("starting the actors")
        outcome: Future[Outcome] = Future()
        threading.Thread(target=self._serve, args=(outcome, on_event), name="server", daemon=True).start()
        try:
            while (said := self._said.get()) is not None:
                listener, what = said
                listener(what)
        except BaseException:
            self._stop()
            wait([outcome], timeout=STOP_S)
            self._hear_the_rest()
            raise
        return outcome.result()

    def _serve(self, outcome: Future[Outcome], on_event: Listener) -> None:
        try:
            self._engine.started.result()  # else the first round's time would be that of the hosts' imports
            # How sums are rounded depends on the number of threads: it is the recipe's.
            torch.set_num_threads(self._setting.recipe.placement.threads)
            self._said.put((as_teller(self._tell).phase, ""))  # the first round begins
            self._assembled = assemble(
                self._setting,
                self._engine,
                self._folder,
                resume=self._resume,
                on_event=lambda event: self._said.put((on_event, event)),
                tell=lambda line: self._said.put((self._tell, line)),
            )
            if self._stopping:  # `_stop` came while there was no simulation to stop yet
                self._assembled.simulation.stop()
            # Without the hosts the last pictures have the machine to themselves, and Ray's end is short.
            summary = self._assembled.run(rounds_over=self._engine.close)
            outcome.set_result((summary, self._assembled.models()))
        except BaseException as error:  # raised again by `run`, in the caller's thread
            outcome.set_exception(error)
        finally:
            self._said.put(None)

    def _stop(self) -> None:
        # Set before `_assembled` is read; `_serve` sets `_assembled` before it reads this flag: so one of the
        # two stops the simulation.
        self._stopping = True
        if self._assembled is not None:
            self._assembled.simulation.stop()
        self._engine.cancel()
        with suppress(InvalidStateError):
            self._engine.started.set_result(None)

    def _hear_the_rest(self) -> None:
        while not self._said.empty():
            said = self._said.get()
            if said is not None:
                listener, what = said
                listener(what)
