"""A recipe run: in this process or on Ray.

result = rayfed_kd.run("configs/quickstart.yaml", ["rounds=3"])
result.tables["metrics"].to_pandas()
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rayfed_kd.errors import RunError, naming
from rayfed_kd.experiment.preparation import Prepared, make_ready, method_location
from rayfed_kd.experiment.result import OnEvent, Result, Tell, _silent, _tables
from rayfed_kd.recipe.loading import RecipeSource, load_recipe
from rayfed_kd.recipe.schema import Named, Recipe

if TYPE_CHECKING:
    from cluster.ray_backend.machines import Surveyed
    from cluster.ray_backend.placement import Plan


UNFINISHED = ".running"  # ends the name of a comparison's run folder until the run is finished


def run(
    recipe: RecipeSource,
    overrides: Sequence[str] = (),
    *,
    local: bool = False,
    address: str | None = None,
    on_event: OnEvent = _silent,
    tell: Tell = lambda line: None,
) -> Result:
    """Runs a recipe.

    Args:
        recipe: a YAML file's path, or the recipe as nested mappings.
        overrides: `key.path=value` each.
        local: in this process, without Ray.
        address: of a Ray cluster; None: RAY_ADDRESS if set, else a private Ray on this machine.
        on_event: called after each round with what happened.
        tell: called with a line about what a user should know.
    Raises: RecipeError or DataError before the first round; RunError after it.
    """
    with naming(recipe):
        resolved = load_recipe(recipe, overrides)
        if local:
            return _run_local(make_ready(resolved), on_event, tell=tell)
        method_location(resolved)  # the cheapest question first: nobody waits for Ray to learn of a typo
        from cluster.ray_backend.session import RaySession

        with RaySession(resolved, address) as session:
            prepared = make_ready(resolved)
            session.ready()
            return run_prepared_on_ray(prepared, on_event, tell=tell)


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """A failed run's message says how to go on, if it can."""
    try:
        yield
    except (RunError, KeyboardInterrupt) as error:
        if list((folder / "checkpoints").glob("round-*.json")):
            of_comparison = folder.suffix == UNFINISHED
            way_on = "the same compare command again" if of_comparison else f"`rayfed-kd resume {folder}`"
            said = f"{error}\nTo go on from the last checkpoint: {way_on}"
            error.args = (said,) if isinstance(error, RunError) else (way_on,)
        raise


def _run_local(
    prepared: Prepared,
    on_event: OnEvent,
    *,
    resume: bool = False,
    tell: Tell = lambda line: None,
) -> Result:
    import torch

    from cluster.engine.host import Host
    from cluster.engine.local import LocalEngine
    from cluster.server.checkpoints import Checkpointer
    from cluster.server.grouping import Grouping
    from cluster.server.simulation import Simulation, run_recorded
    from rayfed_kd.protocol import shared_vectors
    from rayfed_kd.results.folder import run_folder
    from rayfed_kd.results.recorder import RunRecorder

    recipe, setting = prepared.recipe, prepared.setting
    threads = torch.get_num_threads()
    torch.set_num_threads(recipe.placement.threads)
    try:
        with run_folder(recipe, setting, "local", resume=resume) as folder, _resumable(folder):
            engine = LocalEngine(Host(setting, keep_states=recipe.partition.clients))
            checkpointer = Checkpointer(folder, recipe.checkpoint)
            start = checkpointer.latest(engine.publish, "cpu", tell) if resume else None
            after = None if not resume else 0 if start is None else start.round
            recorder = RunRecorder(folder, setting, on_event, after)
            grouping = Grouping(setting, engine, folder, tell)
            simulation = Simulation(setting, engine, recorder, checkpointer=checkpointer, grouping=grouping)
            summary = run_recorded(simulation, recorder, start)
            if summary["status"] == "interrupted":
                raise KeyboardInterrupt
    finally:
        torch.set_num_threads(threads)
    models = {name: vector.numpy() for name, vector in shared_vectors(simulation.models).items()}
    return Result(folder, summary, _tables(folder), models)


def run_prepared_on_ray(
    prepared: Prepared,
    on_event: OnEvent,
    share: int = 1,
    stop: threading.Event | None = None,
    *,
    plan: Plan | None = None,
    resume: bool = False,
    tell: Tell = lambda line: None,
) -> Result:
    from cluster.ray_backend.session import check_room, run_on_ray
    from rayfed_kd.results.folder import run_folder

    if plan is None:
        check_room(prepared.recipe, share)  # before there is a folder
    with (
        run_folder(prepared.recipe, prepared.setting, "ray", resume=resume) as folder,
        _resumable(folder),
    ):
        summary, models = run_on_ray(
            prepared.blueprint,
            prepared.recipe,
            str(folder),
            on_event,
            share=share,
            plan=plan,
            stop=stop,
            resume=resume,
            tell=tell,
        )
    return Result(folder, summary, _tables(folder), models)


def ray_machines(address: str | None = None) -> list[Surveyed]:
    """The machines of a Ray cluster, or of a private Ray that is started and ended for the question.

    Raises: RecipeError if nothing answers at the address; RunError if a machine cannot be asked.
    """
    from cluster.ray_backend.machines import survey
    from cluster.ray_backend.session import RaySession

    with RaySession(Recipe(method=Named(name="fedavg")), address) as session:
        session.ready()
        return survey()
