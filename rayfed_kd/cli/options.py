"""Arguments and options that several commands share."""

from __future__ import annotations

import click

RECIPE = click.argument("recipe", type=click.Path())
OVERRIDES = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
ENGINE = click.option(
    "--engine",
    metavar="NAME",
    help="What runs it: ray (the default), local, or package.module:Class, an engine of your own.",
)
ADDRESS = click.option(
    "--address", help="HOST:PORT of a Ray cluster. Default: RAY_ADDRESS; without it a private Ray is started."
)
