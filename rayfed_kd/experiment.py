"""A recipe run: in this process or on Ray.

result = rayfed_kd.run("configs/quickstart.yaml", ["rounds=3"])
result.tables["metrics"].to_pandas()
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfed_kd.config import EXECUTION, Named, Recipe, RecipeSource, load_recipe
from rayfed_kd.errors import RecipeError, RunError, naming
from rayfed_kd.preparation import Prepared, find_own_modules, make_ready, method_location, prepare

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from rich.table import Table

    from cluster.machines import Surveyed
    from cluster.placement import Plan
    from rayfed_kd.compare import Planned
    from rayfed_kd.setting import Setting

Event = Mapping[str, Any]
OnEvent = Callable[[Event], None]
Tell = Callable[[str], None]
PROGRESS_S = 60.0
CHANGEABLE = ("rounds", *EXECUTION)
UNFINISHED = ".running"  # ends the name of a comparison's run folder until the run is finished


@dataclass(frozen=True)
class Result:
    """What a run found.

    Attributes:
        folder: the run's folder.
        summary: as in summary.json.
        tables: name -> Arrow table: rounds, metrics, clients, messages, hosts.
        models: name -> [P] float32, the shared models evaluated in the last round.
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
        from cluster.session import RaySession

        with RaySession(resolved, address) as session:
            prepared = make_ready(resolved)
            session.ready()
            return run_prepared_on_ray(prepared, on_event, tell=tell)


def resume(
    folder: str | Path,
    overrides: Sequence[str] = (),
    *,
    local: bool = False,
    address: str | None = None,
    on_event: OnEvent = _silent,
    tell: Tell = lambda line: None,
    anyway: bool = False,
) -> Result:
    """Goes on with a run from its newest checkpoint; the result is that of an uninterrupted run, bit for bit.

    Args:
        folder: the run's.
        overrides: of rounds, placement, checkpoint and faults alone.
        local, address, on_event: as in `run`.
        tell: called with a line about what is found.
        anyway: also if the run was begun with other versions of packages.
    Raises: RecipeError if this is no run, or not this run any more, with what differs.
    """
    folder = Path(folder).resolve()
    recipe = _resumed_recipe(folder, overrides, anyway=anyway)
    tables, summary = _tables(folder), read_summary(folder)
    if summary.get("status") == "finished" and summary["rounds"] == recipe.rounds:
        tell(f"{folder} is finished: {recipe.rounds} rounds. `rounds=N` with a larger N extends it.")
        return Result(folder, summary, tables, {})
    if recipe.rounds < tables["rounds"].num_rows:
        raise RecipeError(
            f"rounds = {recipe.rounds}: {folder} has {tables['rounds'].num_rows} rounds already"
        )
    if local:
        prepared = make_ready(recipe)
        _check_given(prepared, folder)
        return _run_local(prepared, on_event, resume=True, tell=tell)
    from cluster.session import RaySession

    with RaySession(recipe, address) as session:
        prepared = make_ready(recipe)
        _check_given(prepared, folder)
        session.ready()
        return run_prepared_on_ray(prepared, on_event, resume=True, tell=tell)


def _resumed_recipe(folder: Path, overrides: Sequence[str], *, anyway: bool) -> Recipe:
    from rayfed_kd.results.folder import changed_packages

    config = folder / "config.yaml"
    if not config.is_file():
        raise RecipeError(f"{folder} holds no run: there is no config.yaml")
    begun, recipe = load_recipe(config), load_recipe(config, [*overrides, f"results.folder={folder}"])
    before, after = begun.model_dump(), recipe.model_dump()
    changed = [key for key in before if key not in CHANGEABLE and before[key] != after[key]]
    if changed:
        shown = "; ".join(f"{key} was {before[key]}, is {after[key]}" for key in changed)
        raise RecipeError(f"{folder}: {shown}. On resuming only {', '.join(CHANGEABLE)} may change")
    differing = changed_packages(folder)
    if differing and not anyway:
        raise RecipeError(
            f"{folder} was begun with {'; '.join(differing)}: the bits may differ. "
            "`--anyway` goes on nevertheless"
        )
    return recipe


def _check_given(prepared: Prepared, folder: Path) -> None:
    from rayfed_kd.data.partition import Partition

    ours = prepared.setting.partition
    saved = Partition.load(folder / "partition.parquet", len(prepared.setting.dataset.train.labels))
    pairs = [*zip(ours.train, saved.train, strict=False), *zip(ours.test, saved.test, strict=False)]
    pairs.append((ours.public, saved.public))
    if len(ours.train) != len(saved.train) or any((a.shape != b.shape) or (a != b).any() for a, b in pairs):
        raise RecipeError(f"{folder}: its partition is another than its recipe and the data give now")
    import pyarrow.parquet as pq

    devices, path = prepared.setting.devices, folder / "devices.parquet"
    if devices is not None and not devices.table().equals(pq.read_table(path)):
        raise RecipeError(f"{folder}: its devices are others than its recipe and clock.file give now")


def read_summary(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf8")) if path.is_file() else {}
    return found


def export(folder: str | Path, model: str, to: str | Path, client: int | None = None) -> list[Path]:
    """Writes a run's model as safetensors and as a torch state_dict, the recipe beside; gives the paths.

    Args:
        folder: the run's; its newest checkpoint is read.
        model: one of the evaluated models, as "oca".
        to: a file name; its ending is replaced by .safetensors, .pt and .yaml.
        client: whose model, where `model` is clients' own.
    Raises: RecipeError if there is no checkpoint or no such model.
    """
    import torch
    import yaml
    from safetensors.torch import save_file

    from cluster.calls import PersonalCall
    from cluster.checkpoints import Checkpointer
    from cluster.engine import LocalEngine
    from cluster.host import Host
    from cluster.records import ClientRecord
    from rayfed_kd.protocol import Evaluated, Personal

    folder = Path(folder).resolve()
    prepared = prepare(folder / "config.yaml")
    setting, warned = prepared.setting, list[str]()
    host = Host(setting)
    publish = LocalEngine(host).publish
    snapshot = Checkpointer(folder, prepared.recipe.checkpoint).latest(publish, "cpu", warned.append)
    if snapshot is None:
        raise RecipeError(
            f"{folder} has no checkpoint to export from{': ' + '; '.join(warned) if warned else ''}"
        )
    models = setting.method.evaluated(snapshot.server)
    if model not in models:
        raise RecipeError(f"--model {model}: this run evaluates {', '.join(models)}")
    chosen = models[model]
    if isinstance(chosen, Personal):
        whose = _exported_client(model, client, setting)
        record = snapshot.records.get(whose, ClientRecord())
        chosen = host.personal(PersonalCall(whose, record.state, record.version, "local"))
    elif client is not None:
        raise RecipeError(f"--client {client}: {model} is one model for all; expected no --client")
    found = chosen if isinstance(chosen, Evaluated) else Evaluated(chosen, "model")
    module = setting.workshop().lend(found.architecture, found.vector).module
    state = {name: value.detach().clone().contiguous() for name, value in module.state_dict().items()}
    paths = [Path(to).with_suffix(ending) for ending in (".safetensors", ".pt", ".yaml")]
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    save_file(state, paths[0], metadata={"model": model, "round": str(snapshot.round)})
    torch.save(state, paths[1])
    whom = model if client is None else f"{model}, client {client}"
    kind, options = setting.described(found.architecture)
    told = {"weights": f"{whom}, round {snapshot.round}", "architecture": {"name": kind, **options}}
    header = "".join(f"# {line}\n" for line in yaml.safe_dump(told, sort_keys=False).splitlines())
    recipe = (folder / "config.yaml").read_text(encoding="utf8")
    paths[2].write_text(f"{header}# of the run with this recipe:\n{recipe}", encoding="utf8")
    return paths


def _exported_client(model: str, client: int | None, setting: Setting) -> int:
    clients = len(setting.partition.train)
    if client is None:
        raise RecipeError(f"--model {model} is each client's own: expected --client, 0 to {clients - 1}")
    if not 0 <= client < clients:
        raise RecipeError(f"--client {client}: expected 0 to {clients - 1}")
    return client


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
    Raises: RecipeError or DataError before the first run; RunError naming the run that failed.
    """
    rows = {plan.label: plan for plan in planned}  # a row's seeds differ in nothing that can fail
    for plan in rows.values():
        with plan.naming():
            prepare(plan.source, plan.overrides)
    if local:
        for plan in planned:
            _run_planned(plan, tell, _run_local)
        return
    from cluster.session import RaySession, run_together

    def on_ray(plan: Planned, share: int, stop: threading.Event) -> None:
        _run_planned(plan, tell, partial(run_prepared_on_ray, share=share, stop=stop))

    first = load_recipe(planned[0].source, planned[0].overrides)
    with RaySession(first, address, jobs or len(planned)) as session:
        session.ready()
        run_together([partial(on_ray, plan) for plan in planned], first, jobs)


def _now_and_then(tell: Tell) -> OnEvent:
    """Tells where a long run is, once in `PROGRESS_S` at most; of its last round its end tells."""
    from rayfed_kd.results.console import round_line

    told_at = time.monotonic()

    def on_event(event: Event) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= PROGRESS_S and event["round"] < event["rounds"]:
            told_at = time.monotonic()
            tell(round_line(event))

    return on_event


def _run_planned(plan: Planned, tell_all: Tell, work: Callable[..., Result]) -> None:
    """`work` is `_run_local` or `run_prepared_on_ray`."""
    name = f"{plan.label}, seed {plan.seed}"

    def tell(line: str) -> None:  # several may run at a time
        tell_all(f"{name}: {line}")

    started = time.perf_counter()
    recipe = load_recipe(plan.source, [*plan.overrides, f"results.folder={plan.aside}"])
    begun = _begun(plan.aside, recipe)
    tell(f"{'goes on' if begun else 'starts'} in {plan.aside}")
    try:
        with plan.naming():
            result = work(make_ready(recipe), _now_and_then(tell), resume=begun, tell=tell)
    except RunError as error:
        raise RunError(f"{name}: {error}") from error
    plan.aside.rename(plan.folder)
    seconds = f"{result.summary['wall_s']:.1f} s in rounds"
    if not begun:  # the rounds' seconds are those of all its parts
        seconds = f"{time.perf_counter() - started:.1f} s in all, {seconds}"
    tell(f"{_headline(result)}; {seconds}")


def _begun(folder: Path, recipe: Recipe) -> bool:
    """Whether the same run was begun there and cut off; what another recipe left there is removed."""
    config, asked = folder / "config.yaml", recipe.model_dump(exclude={"results"})
    if config.is_file() and load_recipe(config).model_dump(exclude={"results"}) == asked:
        return True
    if folder.exists():
        shutil.rmtree(folder)
    return False


def _headline(result: Result) -> str:
    values = [
        f"{model} {metric} {found['last'][metric]:.4f}"
        for model, found in result.summary["models"].items()
        for metric in ("amp", "server_accuracy")
        if found["last"][metric] is not None
    ]
    return ", ".join(values)


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

    from cluster.checkpoints import Checkpointer
    from cluster.engine import LocalEngine
    from cluster.grouping import Grouping
    from cluster.host import Host
    from cluster.simulation import Simulation, run_recorded
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
    from cluster.session import check_room, run_on_ray
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
    from cluster.machines import survey
    from cluster.session import RaySession

    with RaySession(Recipe(method=Named(name="fedavg")), address) as session:
        session.ready()
        return survey()


def draw_partition(source: RecipeSource, overrides: Sequence[str], out: Path) -> tuple[Table, list[Path]]:
    """A recipe's partition as a table and pictures; partition.parquet is written beside them.

    Raises: RecipeError or DataError.
    """
    import numpy as np

    from rayfed_kd.results.partition_figures import partition_pictures, partition_table
    from rayfed_kd.setting import check_names, load_data, load_partition

    find_own_modules()
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
