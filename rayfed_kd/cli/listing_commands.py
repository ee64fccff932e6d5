"""Commands that tell what there is: recipes, methods, models, doctor."""

from __future__ import annotations

import click


@click.command()
def recipes() -> None:
    """List the recipes, studies and search spaces that come with the package.

    Every name stands for a file: `rayfed-kd run quickstart` works in any folder. The folder may be left out
    of a name that no other file of the kind has, as in `rayfed-kd run fedper`. A file on disk wins over a
    name.
    """
    import shutil
    import sys

    from rayfed_kd.cli.recipes import shipped_lines

    for line in shipped_lines(shutil.get_terminal_size().columns if sys.stdout.isatty() else None):
        click.echo(line)


@click.command()
@click.argument("name", required=False)
def methods(name: str | None) -> None:
    """List the methods, or show the method NAME with every option.

    The list has each method's paper, its messages, what server and clients keep, the public data that it
    needs, and the schedules that it runs under. NAME may be a method of your own, as package.module:Object.
    """
    from rich.console import Console

    from rayfed_kd.algorithms import METHODS
    from rayfed_kd.cli.listing import method_facts, methods_overview, page_width
    from rayfed_kd.experiment.preparation import find_own_modules

    find_own_modules()
    parts = [methods_overview(METHODS)] if name is None else method_facts(name, METHODS)
    console = page_width(Console(highlight=False))
    for part in parts:
        console.print(part)


@click.command()
def models() -> None:
    """List classifiers and generators with their options."""
    from rayfed_kd.cli.listing import model_lines

    click.echo("\n".join(model_lines()))


@click.command()
@click.option(
    "--address", help="HOST:PORT of a Ray cluster to look at. Default: RAY_ADDRESS, else a private Ray."
)
def doctor(address: str | None) -> None:
    """Tell which machines Ray sees, what torch and torchvision can do, and which data is found."""
    from rayfed_kd.cli.doctor import report_lines

    for line in report_lines(address):
        click.echo(line)


COMMANDS = (recipes, methods, models, doctor)
