"""Commands that tell what there is: recipes, methods, models, doctor."""

from __future__ import annotations

import click

from rayfed_kd.cli.options import ADDRESS, JSON


@click.command()
@JSON
def recipes(*, as_json: bool) -> None:
    """List the recipes, studies and search spaces that come with the package.

    Every name stands for a file: `rayfed-kd run quickstart` works in any folder. The folder may be left out
    of a name that no other file of the kind has, as in `rayfed-kd run fedper`. A file on disk wins over a
    name.
    """
    import shutil
    import sys

    from rayfed_kd.cli.listing import echo_json
    from rayfed_kd.cli.recipes import shipped, shipped_lines

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    echo_json(list(shipped())) if as_json else click.echo("\n".join(shipped_lines(width)))


@click.command()
@click.argument("name", required=False)
@JSON
def methods(name: str | None, *, as_json: bool) -> None:
    """List the methods, or show the method NAME with every option.

    The list has each method's paper, its messages, what server and clients keep, the public data that it
    needs, and the schedules that it runs under. NAME may be a method of your own, as package.module:Object.
    """
    from rich.console import Console

    from rayfed_kd.algorithms import METHODS
    from rayfed_kd.cli.listing import echo_json, method_facts, method_page, methods_overview, page_width
    from rayfed_kd.experiment.preparation import find_own_modules

    find_own_modules()
    listed = [method_facts(method, METHODS) for method in ([name] if name else METHODS)]
    if as_json:
        echo_json(listed)
    else:
        page = method_page(listed[0]) if name else [methods_overview(listed)]
        page_width(Console(highlight=False)).print(*page, sep="\n")


@click.command()
@JSON
def models(*, as_json: bool) -> None:
    """List classifiers and generators with their options."""
    from rayfed_kd.cli.listing import echo_json, model_facts, model_lines

    listed = list(model_facts())
    echo_json(listed) if as_json else click.echo("\n".join(model_lines(listed)))


@click.command()
@ADDRESS
@JSON
def doctor(address: str | None, *, as_json: bool) -> None:
    """Tell which machines Ray sees, what torch and torchvision can do, and which data is found."""
    from rayfed_kd.cli.doctor import report
    from rayfed_kd.cli.listing import echo_json

    if as_json:
        echo_json({name.strip(): text for name, text in report(address)})
    else:
        for name, text in report(address):
            click.echo(f"{name:<18}{text}")


COMMANDS = (recipes, methods, models, doctor)
