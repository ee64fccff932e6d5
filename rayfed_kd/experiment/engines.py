"""Where a prepared recipe runs: in this process, or on Ray."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rayfed_kd.errors import RecipeError, shown
from rayfed_kd.experiment.preparation import Prepared
from rayfed_kd.experiment.result import OnEvent, Tell
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.results.telling import as_teller

if TYPE_CHECKING:
    import torch

    from rayfed_kd.cluster.engine.interface import Engine
    from rayfed_kd.cluster.ray_backend.placement import Plan
    from rayfed_kd.setting.setting import Setting

Outcome = tuple[Mapping[str, Any], Mapping[str, Any]]


class InProcess:
    """One host in the calling process, without Ray.

    Clients or the server compute on the first GPU that torch sees if the recipe's placement gives them a
    share of one, however large; the share itself is for Ray.

    Class attributes:
        name: as it stands in a run's environment.json.
        awaited: what a run waits for until the engine is ready, in words; empty: nothing.
        resume_options: what the command needs with which an interrupted run goes on where it ran.
    """

    name = "local"
    awaited = ""
    resume_options: tuple[str, ...] = ("--local",)

    def session(self, recipe: Recipe) -> AbstractContextManager[Callable[[], None]]:
        """A context that lasts as long as the run, entered before the recipe is prepared.

        It gives a function that waits until the engine is ready, so that an engine can start meanwhile.
        """
        return nullcontext(lambda: None)

    def device(self, recipe: Recipe, whose: Literal["client", "server"]) -> torch.device | str:
        """The device of the clients or of the server, set up; `launch` undoes the setting up."""
        from rayfed_kd.cluster.engine.device import gpu
        from rayfed_kd.cluster.engine.logical_gpus import is_logical

        share = getattr(recipe.placement, whose).num_gpus
        return "cpu" if share == 0 or is_logical() else gpu(recipe.deterministic)

    def layout(self, prepared: Prepared) -> str:
        """In which processes the server and the clients run, for the run's header; asked before its folder.

        Raises: RecipeError as `check_device` does, or if schedules ask who is late by the real clock.
        """
        recipe, timing = prepared.recipe, prepared.setting.timing
        self.check_device(recipe)
        if timing.clock_class.measured and timing.schedule.needs_clock:
            raise RecipeError(
                f"clock.name = {recipe.clock.name!r}: in this process one client works after another, and "
                f"schedule.name = {recipe.schedule.name!r} sees nobody late; expected another clock, or Ray"
            )
        return "server and clients in this process"

    def check_device(self, recipe: Recipe) -> None:
        """Check that there is what the recipe computes on.

        Raises: RecipeError if the recipe's placement asks for a GPU and torch sees none, or if the device
            cannot compute in `local.precision`.
        """
        import torch

        from rayfed_kd.cluster.engine.device import check_precision
        from rayfed_kd.cluster.engine.logical_gpus import LOGICAL_GPUS, is_logical

        counted = is_logical()
        for whose in ("client", "server"):
            share = getattr(recipe.placement, whose).num_gpus
            if share > 0 and not counted and not torch.cuda.is_available():
                raise RecipeError(
                    f"placement.{whose}.num_gpus = {share:g}: torch sees no GPU on this machine, which "
                    "`rayfed-kd doctor` explains; expected 0, by which it computes on the CPU "
                    f"({LOGICAL_GPUS}=1 in the environment does so, too)"
                )
        on_cpu = recipe.placement.client.num_gpus == 0 or counted
        device = torch.device("cpu" if on_cpu else "cuda")
        check_precision(recipe.local.precision, device)

    def launch(
        self, prepared: Prepared, folder: Path, on_event: OnEvent, tell: Tell, *, resume: bool
    ) -> Outcome:
        """Run a prepared recipe in this thread, with the recipe's number of torch threads.

        Args:
            prepared: the recipe, checked.
            folder: the run's.
            on_event: called with what happened in each round.
            tell: called with a line about what a user should know.
            resume: go on from the newest checkpoint in the folder.
        Returns: the summary, and the models that were evaluated last as arrays.
        Raises: RunError; KeyboardInterrupt after the run was ended cleanly.
        """
        from rayfed_kd.cluster.server.assembly import assemble

        setting = prepared.setting
        with self.computing(setting) as (engine, device):
            assembled = assemble(
                setting, engine, folder, device=device, resume=resume, on_event=on_event, tell=tell
            )
            as_teller(tell).phase("")  # the first round begins
            summary = assembled.run()
            if summary["status"] == "interrupted":
                raise KeyboardInterrupt
            return summary, assembled.models()

    @contextmanager
    def computing(self, setting: Setting) -> Iterator[tuple[Engine, torch.device | str]]:
        """The engine and the server's device, while torch is set as the recipe says.

        The engine keeps the states of all clients in memory.
        """
        import torch

        from rayfed_kd.cluster.engine.device import settings_kept
        from rayfed_kd.cluster.engine.host import make_host
        from rayfed_kd.cluster.engine.local import LocalEngine

        recipe = setting.recipe
        threads = torch.get_num_threads()
        # How sums are rounded depends on the number of threads: it is the recipe's, not the machine's.
        torch.set_num_threads(recipe.placement.threads)
        try:
            with settings_kept():
                device, clients = self.device(recipe, "client"), recipe.partition.clients
                engine = LocalEngine(make_host(setting, device=device, keep_states=clients))
                yield engine, self.device(recipe, "server")
        finally:
            torch.set_num_threads(threads)


@dataclass(frozen=True)
class OnRay:
    """A server actor and client actors on Ray; this process starts them, tells what they say, and ends them.

    Attributes:
        address: of a Ray cluster; None: RAY_ADDRESS if set, else a private Ray on this machine.
        share: one part in so many of the cluster is this run's.
        stop: set by another thread, it ends the run as Ctrl-C does.
        plan: the actors, where they are placed already; None: as the recipe's placement says.
    """

    name: ClassVar[str] = "ray"
    address: str | None = None
    share: int = 1
    stop: threading.Event | None = None
    plan: Plan | None = None

    @contextmanager
    def session(self, recipe: Recipe) -> Iterator[Callable[[], None]]:
        """A Ray session. Ray starts in a thread while the recipe is prepared."""
        from rayfed_kd.cluster.ray_backend.session import RaySession

        with RaySession(recipe, self.address) as session:
            yield session.ready

    @property
    def awaited(self) -> str:
        """The Ray that is joined or started."""
        address = self.address or os.environ.get("RAY_ADDRESS")
        return f"connecting to the Ray at {address}" if address else "starting Ray"

    @property
    def resume_options(self) -> tuple[str, ...]:
        """The cluster's address, if one was given."""
        return () if self.address is None else ("--address", self.address)

    def layout(self, prepared: Prepared) -> str:
        """The actors and what each has.

        Raises: RecipeError if the recipe's actors do not fit on the cluster.
        """
        from rayfed_kd.cluster.ray_backend.remote_run import planned

        plan = planned(prepared.setting, self.share) if self.plan is None else self.plan
        return plan.described(prepared.recipe.partition.clients)

    def launch(
        self, prepared: Prepared, folder: Path, on_event: OnEvent, tell: Tell, *, resume: bool
    ) -> Outcome:
        """Run on actors; see `InProcess.launch`."""
        from rayfed_kd.cluster.ray_backend.remote_run import run_on_ray

        return run_on_ray(
            prepared.blueprint,
            prepared.setting,
            str(folder),
            on_event,
            share=self.share,
            plan=self.plan,
            stop=self.stop,
            resume=resume,
            tell=tell,
        )


Launcher = InProcess | OnRay


def make_launcher(*, local: bool, address: str | None) -> Launcher:
    """What runs a recipe.

    Args:
        local: in this process, without Ray.
        address: of a Ray cluster.
    Raises: RecipeError if the arguments contradict each other, or this system has no Ray for us.
    """
    if not isinstance(local, bool):
        raise RecipeError(
            f"local = {shown(local)}: expected True or False. The recipe's section of this name is changed "
            "by overrides, as {'local.epochs': 1}"
        )
    if not local:
        if os.name == "nt":
            raise RecipeError("runs on Ray need Linux or macOS; expected --local, or local=True in Python")
        return OnRay(address)
    if address is not None:
        raise RecipeError(f"--address {address}: a run with --local uses no Ray; expected one of them")
    return InProcess()
