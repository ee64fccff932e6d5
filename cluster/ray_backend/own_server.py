"""A run whose server is the launching process itself, beside a private Ray that has the clients' hosts.

On one machine a server's actor would be one process more: it would start, load torch and build the setting
again, while the launching process, which has done all that to check the recipe, only waits. On a cluster
the server is an actor (`remote_run`), as the launching process may be far from the hosts.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch

from cluster.engine.host import Host
from cluster.ray_backend.dispatch.home_host import HomeHost
from cluster.ray_backend.engine import RayEngine
from cluster.ray_backend.handles import machine_name
from cluster.ray_backend.machines import ray_nodes
from cluster.ray_backend.mailbox import Mailbox
from cluster.ray_backend.placement import Plan, plan_hosts, trains_in_server
from cluster.ray_backend.remote_run import client_actors, group_of
from cluster.ray_backend.session import is_private
from cluster.server.assembly import AssembledRun, assemble
from rayfed_kd.errors import RunError
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.results.telling import as_teller
from rayfed_kd.setting.blueprint import Blueprint
from rayfed_kd.setting.setting import Setting

OWN_PROCESS = "placement.train_in_server=false gives every client a process that can be ended alone"
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
    """Create the client actors, and run the server's loop in this thread.

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
    recipe, threads = setting.recipe, torch.get_num_threads()
    plan = replace(plan_hosts(recipe, setting.schedule.concurrency, ray_nodes()), home=_trains_here(setting))
    mailbox = Mailbox()
    heard = _Heard(mailbox)
    as_teller(tell).phase("starting the actors")
    try:
        # The server's share stays reserved in the group: other runs on this Ray must not count on it.
        with group_of(plan, None, tell) as group, _event_loop() as loop:
            clients = client_actors(plan, group)
            # How sums are rounded depends on the number of threads: it is the recipe's.
            torch.set_num_threads(recipe.placement.threads)
            home = _home(setting, plan, mailbox) if plan.home else None
            options: dict[str, Any] = {"tell": heard.by(tell), "mailbox": mailbox, "home": home}
            engine = RayEngine.of(setting, clients, ray.put(blueprint), plan, loop, **options)
            # A host at home is there at once, and the others join it. Without one the first round's time
            # would be that of the hosts' imports.
            mailbox.result(engine.started)
            as_teller(tell).phase("")  # the first round begins
            assembled = assemble(
                setting, engine, Path(folder), resume=resume, on_event=heard.by(on_event), tell=heard.by(tell)
            )
            if heard.error is not None:  # there was nothing to stop yet
                raise heard.error
            heard.stop = partial(_stop, assembled, engine)
            try:
                summary = assembled.run(rounds_over=partial(_end_hosts, engine, mailbox))
            finally:
                engine.cancel()  # what still lies in the mailbox is told, and not trained
                mailbox.empty()
    finally:
        torch.set_num_threads(threads)
    if home is not None and home.overdue:
        raise RunError(f"{home.overdue}; {OWN_PROCESS}")
    if heard.error is not None:
        raise heard.error
    if summary["status"] == "interrupted":
        raise KeyboardInterrupt
    return summary, assembled.models()


def _trains_here(setting: Setting) -> bool:
    """Whether this thread trains clients, too. It must be the one that Ctrl-C reaches.

    A shell script lets what it starts in the background ignore Ctrl-C; a step that hangs could not be left.
    """
    reached = threading.current_thread() is threading.main_thread()
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return reached and not ignored and trains_in_server(setting.recipe) and not setting.clock.measured


def _home(setting: Setting, plan: Plan, mailbox: Mailbox) -> HomeHost:
    return HomeHost(Host(setting, 0, "cpu", plan.keep_states, machine_name()), mailbox)


def _end_hosts(engine: RayEngine, mailbox: Mailbox) -> None:
    """After the last round: the last pictures have the machine to themselves, and Ray's end is short."""
    mailbox.empty()  # the last round is told before they are drawn
    engine.close()


def _stop(assembled: AssembledRun, engine: RayEngine) -> None:
    assembled.simulation.stop()
    engine.cancel()


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


class _Heard:
    """Passes on what the run says to the caller's listeners, in the server's thread.

    A listener that raises ends the run, as Ctrl-C does; its error is raised when the run is over.

    Args:
        mailbox: of the server's thread.
    Attributes:
        stop: ends the run.
        error: what a listener raised.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self.stop: Callable[[], None] = lambda: None
        self.error: Exception | None = None

    def by(self, listener: Listener) -> Listener:
        """A function that passes its argument on to a listener; it may be called from any thread."""
        return lambda said: self._mailbox.post(lambda: self._pass_on(listener, said))

    def _pass_on(self, listener: Listener, said: Any) -> None:
        try:
            listener(said)
        except Exception as error:
            self.error = self.error or error
            self.stop()
