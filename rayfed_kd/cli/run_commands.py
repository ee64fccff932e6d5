"""Commands about one run: run, resume, export, partition."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rayfed_kd.cli.interruption import Interruptions
from rayfed_kd.cli.options import ADDRESS, ESTIMATE, LOCAL, OVERRIDES, RECIPE, UserPath

if TYPE_CHECKING:
    from rayfed_kd.experiment.result import Result


@click.command()
@RECIPE
@OVERRIDES
@LOCAL
@ADDRESS
@ESTIMATE
@click.pass_obj
def run(
    interruptions: Interruptions,
    /,
    recipe: str,
    overrides: tuple[str, ...],
    only_estimated: bool,
    **options: Any,
) -> None:
    """Run RECIPE: a YAML file, or a name that `rayfed-kd recipes` lists.

    KEY=VALUE changes a key of the recipe, as method.gamma=0.5 or rounds=20.

    --estimate measures a few short rounds in this process, on parts of the data.
    """
    if only_estimated:
        from rayfed_kd.experiment.estimating import estimate

        click.echo(estimate(recipe, overrides, tell=lambda line: click.echo(line, err=True)))
        return
    from rayfed_kd.experiment.running import run as run_recipe

    start = partial(run_recipe, recipe, overrides, **options)
    _run_on_console(interruptions, shlex.join((recipe, *overrides)), start)


@click.command()
@click.argument("folder", type=UserPath())
@OVERRIDES
@LOCAL
@ADDRESS
@click.option(
    "--anyway",
    is_flag=True,
    help="Go on with other code, named files, or versions of rayfed-kd, torch and numpy than at the start.",
)
@click.option(
    "--restart",
    is_flag=True,
    help="If no checkpoint can be used, begin again at round 1, and delete the rounds that are recorded.",
)
@click.pass_obj
def resume(interruptions: Interruptions, /, folder: str, overrides: tuple[str, ...], **options: Any) -> None:
    """Go on with the run in FOLDER from its last checkpoint.

    The result is the same as if the run had never been cut off. rounds=N with a larger N extends the run;
    stop and keys of placement (but for its threads), checkpoint, faults and results may change, too.
    """
    from rayfed_kd.experiment.running import resume as resume_run

    start = partial(resume_run, folder, overrides, **options)
    _run_on_console(interruptions, shlex.join(("resume", folder, *overrides)), start, resumed=True)


def _run_on_console(
    interruptions: Interruptions, title: str, start: Callable[..., Result], *, resumed: bool = False
) -> None:
    """Show a run while it goes, and its summary at its end; `start` takes its listeners."""
    import time

    from rayfed_kd.results.console import RunConsole

    started = time.perf_counter()
    with RunConsole() as console, interruptions.calling(console.stopping):
        console.start(title)
        result = start(on_event=console.round, tell=console.teller)
    console.finish(result.summary, result.folder, time.perf_counter() - started, resumed=resumed)


@click.command()
@click.argument("folder", type=UserPath())
@click.option("--model", required=True, help="The evaluated model to export, as oca.")
@click.option(
    "--to",
    required=True,
    type=UserPath(),
    help="File name; .safetensors, .yaml and .onnx come behind it.",
)
@click.option("--client", type=int, help="The client whose model it is, where each has its own, as personal.")
@click.option("--onnx", is_flag=True, help="Write an ONNX file as well; the extra `onnx` has what it needs.")
def export(folder: str, model: str, to: str, client: int | None, onnx: bool) -> None:
    """Export a model of the run in FOLDER, of its newest checkpoint, as safetensors.

    `rayfed_kd.load` makes a module of the safetensors file, with its preprocessing. The recipe is written
    beside it.
    """
    from rayfed_kd.experiment.exporting import export as export_model

    for path in export_model(folder, model, to, client, onnx=onnx):
        click.echo(path)


@click.command()
@RECIPE
@OVERRIDES
@click.option(
    "--out",
    type=UserPath(path_type=Path),
    default=Path(),
    help="Folder for the files. Default: the current one.",
)
def partition(recipe: str, overrides: tuple[str, ...], out: Path) -> None:
    """Draw RECIPE's partition: a picture, partition.parquet, and a table of the clients."""
    from rich.console import Console

    from rayfed_kd.experiment.preparation import partition as draw_partition

    drawn = draw_partition(recipe, overrides)
    paths = drawn.save(out)
    Console().print(drawn.screen_table())
    for path in paths:
        click.echo(path)


COMMANDS = (run, resume, export, partition)
