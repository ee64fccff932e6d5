"""Arguments and options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from rayfed_kd.errors import RecipeError, shortened
from rayfed_kd.files.folders import path_fault


class UserPath(click.Path):
    """A path that the operating system can take; what lies there is the command's business."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """The path, or an error that names the argument or option."""
        fault = path_fault(str(value))
        if fault is not None:
            self.fail(fault, param, ctx)
        return super().convert(value, param, ctx)


def each_once(context: click.Context, parameter: click.Parameter, words: Sequence[str]) -> Sequence[str]:
    """The words of a command line, of which no later one changes a key again, or all of its section.

    Raises: RecipeError naming both.
    """
    changes = dict[str, str]()
    for word in words:
        key, equals, _ = word.partition("=")
        if equals and (lost := [before for before in changes if f"{before}.".startswith(f"{key}.")]):
            raise RecipeError(
                f"{lost[0]} stands twice on the command line, as {shortened(changes[lost[0]])} and as "
                f"{shortened(word)}; expected it once"
            )
        changes[key] = word
    return words


JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
RECIPE = click.argument("recipe", type=UserPath())
OVERRIDES = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", callback=each_once)
LOCAL = click.option(
    "--local", is_flag=True, help="Run in this process, without Ray: for debuggers and small runs."
)
ADDRESS = click.option(
    "--address", help="HOST:PORT of a Ray cluster. Default: RAY_ADDRESS; without it a private Ray is started."
)
ESTIMATE = click.option(
    "--estimate",
    "only_estimated",
    is_flag=True,
    help="Say how long it would take here, and run nothing more.",
)
AGAINST = click.option(
    "--against",
    multiple=True,
    metavar="AXIS",
    help="Draw the headline over bytes, bytes_up, bytes_down, epsilon, local_epsilon, sim_s or wall_s; "
    "repeatable.",
)
