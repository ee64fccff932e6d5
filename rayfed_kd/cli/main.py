"""The command line. Exit codes: 0; 1 failed run; 2 bad recipe or data; 130 and 143 interrupted."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from rayfed_kd.errors import RayfedError, RecipeError

if TYPE_CHECKING:
    from rayfed_kd.comparison.table import Comparison

RECIPE = click.argument("recipe", type=click.Path())
OVERRIDES = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def commands() -> None:
    """Simulate federated knowledge distillation, on one machine or a Ray cluster."""


@commands.command()
@RECIPE
@OVERRIDES
@click.option("--local", is_flag=True, help="In this process, without Ray: for debuggers and small runs.")
@click.option("--address", help="HOST:PORT of a Ray cluster; default: RAY_ADDRESS, else a private Ray.")
def run(recipe: str, overrides: tuple[str, ...], local: bool, address: str | None) -> None:
    """Run RECIPE, a YAML file, with KEY=VALUE overrides as method.gamma=0.5 rounds=20."""
    import time

    from rayfed_kd.experiment.running import run as run_recipe
    from rayfed_kd.results.console import RunConsole

    started = time.perf_counter()
    console = RunConsole()
    console.start(shlex.join((recipe, *overrides)))
    try:
        result = run_recipe(
            recipe, overrides, local=local, address=address, on_event=console.round, tell=console.message
        )
    finally:
        console.stop()
    console.finish(result.summary, result.folder, time.perf_counter() - started)


@commands.command()
@click.argument("folder", type=click.Path())
@OVERRIDES
@click.option("--local", is_flag=True, help="In this process, without Ray.")
@click.option("--address", help="HOST:PORT of a Ray cluster; default: RAY_ADDRESS, else a private Ray.")
@click.option("--anyway", is_flag=True, help="Although the run was begun with other package versions.")
def resume(folder: str, overrides: tuple[str, ...], local: bool, address: str | None, anyway: bool) -> None:
    """Go on with the run in FOLDER from its last checkpoint, as if it had never been cut off.

    rounds=N extends it; placement.*, checkpoint.* and faults.* may change, too.
    """
    import time

    from rayfed_kd.experiment.resuming import resume as resume_run
    from rayfed_kd.results.console import RunConsole

    started = time.perf_counter()
    console = RunConsole()
    console.start(shlex.join(("resume", folder, *overrides)))
    try:
        result = resume_run(
            folder,
            overrides,
            local=local,
            address=address,
            on_event=console.round,
            tell=console.message,
            anyway=anyway,
        )
    finally:
        console.stop()
    console.finish(result.summary, result.folder, time.perf_counter() - started, resumed=True)


@commands.command()
@click.argument("folder", type=click.Path())
@click.option("--model", required=True, help="One of the evaluated models, as oca.")
@click.option(
    "--to", required=True, type=click.Path(), help="File name; .safetensors, .pt and .yaml are written."
)
@click.option("--client", type=int, help="Whose, where the model is each client's own, as personal.")
def export(folder: str, model: str, to: str, client: int | None) -> None:
    """Write a model of the run in FOLDER as safetensors and as a torch state_dict, its recipe beside."""
    from rayfed_kd.experiment.exporting import export as export_model

    for path in export_model(folder, model, to, client):
        click.echo(path)


@commands.command()
@RECIPE
@OVERRIDES
@click.option("--out", type=click.Path(path_type=Path), default=Path(), help="Folder for the pictures.")
def partition(recipe: str, overrides: tuple[str, ...], out: Path) -> None:
    """Draw RECIPE's partition: pictures, partition.parquet, and a table of the clients."""
    from rayfed_kd.experiment.partitioning import draw_partition

    table, paths = draw_partition(recipe, overrides, out)
    from rich.console import Console

    console = Console()
    console.print(table)
    for path in paths:
        click.echo(path)


@commands.command()
@click.argument("name", required=False)
def methods(name: str | None) -> None:
    """List the methods: paper, what travels and is kept, data, schedules. With NAME: one, with its options.

    NAME may be a method of your own, as package.module:Object.
    """
    from rich.console import Console

    from algorithms import METHODS
    from rayfed_kd.cli.listing import method_facts, methods_overview, page_width
    from rayfed_kd.experiment.preparation import find_own_modules

    find_own_modules()
    shown = [methods_overview(METHODS)] if name is None else method_facts(name, METHODS)
    console = page_width(Console(highlight=False))
    for part in shown:
        console.print(part)


@commands.command()
def models() -> None:
    """List classifiers and generators with their options."""
    from rayfed_kd.cli.listing import model_lines

    click.echo("\n".join(model_lines()))


@commands.command()
@click.option("--address", help="HOST:PORT of a Ray cluster to look at.")
def doctor(address: str | None) -> None:
    """Tell what Ray sees, what torch sees, which data is found, and torchvision's state."""
    from rayfed_kd.cli.doctor import report_lines

    for line in report_lines(address):
        click.echo(line)


@commands.command(name="compare")
@click.argument("configs", nargs=-1, required=True, metavar="CONFIG [CONFIG|KEY=VALUE]...")
@click.option("--seeds", type=click.IntRange(1), help="Run seeds 1 to N; default: the study's, else 1.")
@click.option(
    "--table", "tables", multiple=True, metavar="NAME", help="One of the study's tables; repeatable."
)
@click.option("--only", multiple=True, metavar="LABEL", help="A row to run, and no other; repeatable.")
@click.option("--without", multiple=True, metavar="LABEL", help="A row to leave out; repeatable.")
@click.option("--jobs", type=click.IntRange(1), help="Runs at a time on Ray; default: as many as have room.")
@click.option("--folder", help="Where runs and tables go; default: the study's.")
@click.option("--local", is_flag=True, help="In this process, one after another, without Ray.")
@click.option("--address", help="HOST:PORT of a Ray cluster; default: RAY_ADDRESS, else a private Ray.")
def compare_(
    configs: tuple[str, ...],
    jobs: int | None,
    local: bool,
    address: str | None,
    **chosen: Any,
) -> None:
    """Run a study file, or several recipes, with every seed, and put the results in one table.

    KEY=VALUE goes to every recipe; a study file gives rows options of their own
    (rayfed_kd/comparison/studies.py shows one). quick=true runs a study's quick version; --table, --only and
    --without take parts of it. What the command line changes of a study stands in the table's title. Mean and
    deviation of every metric, the paper's values and the agreement of both orders; Markdown, LaTeX, Parquet
    and curves are written to the folder. Runs that are there already are not run again: a study goes on where
    it was cut off.
    """
    from functools import partial

    from rayfed_kd.comparison.comparing import compare
    from rayfed_kd.comparison.planning import check, check_data
    from rayfed_kd.comparison.runs import run_each
    from rayfed_kd.comparison.studies import studies_of

    changes = [c for c in configs if "=" in c and c != "quick=true"]
    if wrong := next((c for c in changes if c.partition("=")[0] == "quick"), None):
        raise RecipeError(f"{wrong}: expected quick=true, or nothing")
    sources = [c for c in configs if "=" not in c]
    studies = studies_of(sources, changes, quick="quick=true" in configs, **chosen)
    run_missing = partial(run_each, local=local, address=address, jobs=jobs, tell=click.echo)
    for study in studies:
        check(study)
        check_data(study)
    with _going_on_by("the same compare command again"):
        for study in studies:
            comparison = compare(study, run=run_missing, tell=click.echo)
            _show(comparison)


@commands.command()
@RECIPE
@OVERRIDES
@click.option("--space", required=True, type=click.Path(), help="YAML: which keys, which values.")
@click.option("--samples", type=int, help="Trials; default: the space's, else 10.")
@click.option("--scheduler", type=click.Choice(["asha", "fifo"]), default="asha", show_default=True)
@click.option(
    "--search", type=click.Choice(["random", "optuna", "grid"]), default="random", show_default=True
)
@click.option("--metric", help="METRIC/MODEL, as amp/oca; default: the space's, else the recipe's headline.")
@click.option("--concurrent", type=click.IntRange(1), help="Trials at a time; default: as many as have room.")
@click.option("--folder", help="Where trials and tables go; default: runs/tune- and the recipe's name.")
@click.option("--resume", "resume_", is_flag=True, help="Go on with the search in the folder.")
@click.option("--address", help="HOST:PORT of a Ray cluster; default: RAY_ADDRESS, else a private Ray.")
def tune(recipe: str, overrides: tuple[str, ...], resume_: bool, **options: Any) -> None:
    """Search the coefficients of RECIPE with Ray Tune: every trial is a run of its own.

    rayfed_kd/tuning/spaces.py shows a space. ASHA stops trials that are behind at a ninth and a third of the
    rounds. The folder gets trials.parquet, best.yaml (a recipe that `run` takes), pictures and TensorBoard
    with HParams. --resume goes on after an interruption and tries failed trials again; with more --samples it
    adds trials.
    """
    from rich.console import Console

    from rayfed_kd.cli.listing import page_width
    from rayfed_kd.tuning.tune import tune as search

    with _going_on_by("the same tune command with --resume"):
        found = search(recipe, overrides=overrides, resume=resume_, tell=click.echo, **options)
    page_width(Console()).print(found.rich())
    for line in found.failures():
        click.echo(line, err=True)
    for path in found.write():
        click.echo(path)


def _show(comparison: Comparison) -> None:
    """A comparison's table and what the paper has, on the screen; then its files."""
    from rich.console import Console

    console = Console()
    if console.is_terminal:
        console.print(comparison.rich())
        for line in (comparison.caption(), *comparison.remarks()):
            console.print(line, markup=False, highlight=False)
        for heading, rows in comparison.published():
            console.print(heading, markup=False)
            for label, values in rows:
                console.print(f"  {label}: {values}", markup=False, highlight=False)
    else:  # a file or another program: no line is folded to a width
        click.echo(comparison.markdown())
    for path in comparison.write(Path(comparison.study.folder)):
        click.echo(path)


@commands.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FOLDER...")
@click.option("--to", type=click.Path(path_type=Path), default="report.html", help="Default: report.html.")
def report(folders: tuple[Path, ...], to: Path) -> None:
    """Write one HTML page about the runs in FOLDERs, or a comparison's or a search's folder; works offline.

    Its tables lie beside it as Markdown, under the same name with .md.
    """
    from algorithms import METHODS
    from rayfed_kd.report import write_report

    for path in write_report(folders, to, METHODS):
        click.echo(path)


def main() -> NoReturn:
    """The entry point: errors become one message and an exit code."""
    terminated: list[int] = []

    def on_term(number: int, frame: FrameType | None) -> None:
        signal.alarm(0)  # Ray's own handler, which came first, would abort the process after 3 s
        terminated.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, on_term)
    try:
        code: Any = commands.main(standalone_mode=False)
    except click.exceptions.Abort as stop:  # click's name for a KeyboardInterrupt
        code = _interrupted(terminated, *map(str, stop.__cause__.args if stop.__cause__ else ()))
    except KeyboardInterrupt as stop:
        code = _interrupted(terminated, *map(str, stop.args))
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except RayfedError as error:
        click.echo(f"error: {error}", err=True)
        code = error.exit_code
    sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def _going_on_by(way_on: str) -> Iterator[None]:
    """An interruption within tells this way to go on, not that of the one run which was cut off."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(way_on) from None


def _interrupted(terminated: list[int], way_on: str = "") -> int:
    goes_on = f"; {way_on} goes on" if way_on else ""
    click.echo(f"interrupted: what was finished is there{goes_on}", err=True)
    return 143 if terminated else 130
