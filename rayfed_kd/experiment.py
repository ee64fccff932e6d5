"""A recipe made runnable, and run: in this process or on Ray.

result = rayfed_kd.run("configs/quickstart.yaml", ["rounds=3"])
result.tables["metrics"].to_pandas()
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfed_kd.config import Named, Recipe, RecipeSource, load_recipe
from rayfed_kd.errors import RecipeError, RunError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from rich.table import Table

    from cluster.placement import Node
    from rayfed_kd.compare import Planned
    from rayfed_kd.setting import Blueprint, Setting

Event = Mapping[str, Any]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """What a run found.

    Attributes:
        folder: the run's folder.
        summary: as in summary.json.
        tables: name -> Arrow table: rounds, metrics, clients, messages, hosts.
        models: name -> [P] float32, the evaluated models of the last round.
    """

    folder: Path
    summary: Mapping[str, Any]
    tables: Mapping[str, pa.Table]
    models: Mapping[str, np.ndarray[Any, Any]]


def _silent(event: Event) -> None:
    pass


def run(
    recipe: RecipeSource,
    overrides: Sequence[str] = (),
    *,
    local: bool = False,
    address: str | None = None,
    on_event: Callable[[Event], None] = _silent,
) -> Result:
    """Runs a recipe.

    Args:
        recipe: a YAML file's path, or the recipe as nested mappings.
        overrides: `key.path=value` each.
        local: in this process, without Ray.
        address: of a Ray cluster; None: RAY_ADDRESS if set, else a private Ray on this machine.
        on_event: called after each round with what happened.
    Raises: RecipeError or DataError before the first round; RunError after it.
    """
    with naming(recipe):
        resolved = load_recipe(recipe, overrides)
        if local:
            return _run_local(_prepared(resolved), on_event)
        method_location(resolved)  # the cheapest question first: nobody waits for Ray to learn of a typo
        from cluster.session import RaySession

        with RaySession(resolved, address or os.environ.get("RAY_ADDRESS")) as session:
            prepared = _prepared(resolved)
            session.ready()
            return _run_ray(prepared, on_event)


@dataclass(frozen=True)
class Prepared:
    """A recipe that passed every check.

    Attributes:
        recipe: resolved.
        blueprint: what other processes build the setting from.
        setting: the same in this process.
    """

    recipe: Recipe
    blueprint: Blueprint
    setting: Setting


def prepare(source: RecipeSource, overrides: Sequence[str] = ()) -> Prepared:
    """Everything that can be refused before a run is refused here.

    Raises: RecipeError or DataError.
    """
    with naming(source):
        return _prepared(load_recipe(source, overrides))


@contextmanager
def naming(source: RecipeSource) -> Iterator[None]:
    """Recipe errors raised within name the recipe's file, if it came from one."""
    try:
        yield
    except RecipeError as error:
        name = None if isinstance(source, Mapping) else str(source)
        raise RecipeError(error.message, error.path, error.hint, error.source or name) from None


def method_location(recipe: Recipe) -> str:
    """Where the recipe's method is.

    Raises: RecipeError if its name is unknown.
    """
    from algorithms import METHODS
    from rayfed_kd.registry import locate

    return locate(recipe.method.name, METHODS, "method.name")


def _prepared(recipe: Recipe) -> Prepared:
    location = method_location(recipe)
    _find_own_modules()
    from rayfed_kd.setting import Blueprint, check_names, load_data, load_partition, make_method

    make_method(location, recipe.method)
    check_names(recipe)
    dataset = load_data(recipe)
    partition = load_partition(recipe, dataset)
    blueprint = Blueprint(
        recipe=recipe.model_dump(),
        method=location,
        dataset_folder=str(dataset.folder),
        partition=partition,
        import_paths=(str(Path.cwd()),),
    )
    setting = blueprint.build()
    setting.check()
    return Prepared(recipe, blueprint, setting)


def _tables(folder: Path) -> dict[str, Any]:
    from rayfed_kd.results.tables import SCHEMAS, read_table

    return {name: read_table(folder / "tables", name) for name in SCHEMAS}


def run_each(
    planned: Sequence[Planned], *, local: bool, address: str | None, jobs: int | None, tell: Tell
) -> None:
    """Runs a comparison's runs: one after another in this process, or `jobs` at a time on one Ray.

    Args:
        planned: every one's folder is renamed when it is finished.
        local: in this process, without Ray.
        address: of a Ray cluster.
        jobs: how many at a time on Ray; None: as many as have room for a client actor each.
        tell: called with a line when a run starts and ends.
    Raises: RecipeError or DataError; RunError naming the run that failed.
    """
    if local:
        for plan in planned:
            _run_planned(plan, tell, lambda prepared: _run_local(prepared, _silent))
        return
    from cluster.session import RaySession, run_together

    def on_ray(plan: Planned, share: int, stop: threading.Event) -> None:
        _run_planned(plan, tell, lambda prepared: _run_ray(prepared, _silent, share, stop))

    first = load_recipe(planned[0].source, planned[0].overrides)
    with RaySession(first, address or os.environ.get("RAY_ADDRESS"), jobs or len(planned)) as session:
        session.ready()
        run_together([partial(on_ray, plan) for plan in planned], first, jobs)


def _run_planned(plan: Planned, tell: Tell, work: Callable[[Prepared], Result]) -> None:
    tell(f"{plan.label}, seed {plan.seed}: starts in {plan.aside}")
    try:
        result = work(prepare(plan.source, [*plan.overrides, f"results.folder={plan.aside}"]))
    except RunError as error:
        raise RunError(f"{plan.label}, seed {plan.seed}: {error}") from error
    plan.aside.rename(plan.folder)
    tell(f"{plan.label}, seed {plan.seed}: {_headline(result)}")


def _headline(result: Result) -> str:
    values = [
        f"{model} {metric} {found['last'][metric]:.4f}"
        for model, found in result.summary["models"].items()
        for metric in ("amp", "server_accuracy")
        if found["last"][metric] is not None
    ]
    return ", ".join(values)


def _run_local(prepared: Prepared, on_event: Callable[[Event], None]) -> Result:
    import torch

    from cluster.engine import LocalEngine
    from cluster.host import Host
    from cluster.simulation import Simulation, run_recorded
    from rayfed_kd.results.folder import run_folder
    from rayfed_kd.results.recorder import RunRecorder

    recipe, setting = prepared.recipe, prepared.setting
    threads = torch.get_num_threads()
    torch.set_num_threads(recipe.placement.threads)
    try:
        with run_folder(recipe, setting, "local") as folder:
            host = Host(setting, keep_states=recipe.partition.clients)
            recorder = RunRecorder(folder, setting, on_event)
            simulation = Simulation(setting, LocalEngine(host), recorder)
            summary = run_recorded(simulation, recorder)
    finally:
        torch.set_num_threads(threads)
    if summary["status"] == "interrupted":
        raise KeyboardInterrupt
    models = {name: vector.numpy() for name, vector in simulation.models.items()}
    return Result(folder, summary, _tables(folder), models)


def _run_ray(
    prepared: Prepared,
    on_event: Callable[[Event], None],
    share: int = 1,
    stop: threading.Event | None = None,
) -> Result:
    from cluster.session import run_on_ray
    from rayfed_kd.results.folder import run_folder

    with run_folder(prepared.recipe, prepared.setting, "ray") as folder:
        summary, models = run_on_ray(
            prepared.blueprint, prepared.recipe, str(folder), on_event, share=share, stop=stop
        )
    return Result(folder, summary, _tables(folder), models)


def ray_machines(address: str | None = None) -> list[Node]:
    """The machines of a Ray cluster, or of a private Ray that is started and ended for the question."""
    from cluster.session import RaySession, ray_nodes

    with RaySession(Recipe(method=Named(name="fedavg")), address) as session:
        session.ready()
        return ray_nodes()


def draw_partition(source: RecipeSource, overrides: Sequence[str], out: Path) -> tuple[Table, list[Path]]:
    """A recipe's partition as a table and pictures; partition.parquet is written beside them.

    Raises: RecipeError or DataError.
    """
    import numpy as np

    from rayfed_kd.results.partition_figures import partition_pictures, partition_table
    from rayfed_kd.setting import check_names, load_data, load_partition

    _find_own_modules()
    with naming(source):
        recipe = load_recipe(source, overrides)
        check_names(recipe)
        dataset = load_data(recipe)
        partition = load_partition(recipe, dataset)
    out.mkdir(parents=True, exist_ok=True)
    partition.save(out / "partition.parquet")
    labels = np.asarray(dataset.train.labels)
    pictures = partition_pictures(partition, labels, dataset.class_names, out)
    return partition_table(partition, labels, dataset.classes), [*pictures, out / "partition.parquet"]


def _find_own_modules() -> None:
    """The command's folder on the import path, so that `my_method:MyMethod` is found there."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
