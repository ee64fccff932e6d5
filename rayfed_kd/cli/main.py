"""The entry point of the command line, with its exit codes.

0: done. 1: a run failed. 2: a bad recipe, bad data or a bad command line. 130: interrupted with Ctrl-C.
143: ended with SIGTERM.

The modules of the commands import what they need when a command is called: `--help` loads neither torch nor
Ray.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any, NoReturn

import click

from rayfed_kd.cli import data_commands, listing_commands, run_commands, study_commands
from rayfed_kd.cli.interruption import Interruptions
from rayfed_kd.errors import RayfedError, RecipeError

# By name, as `--help` loads none of these libraries.
READERS = ("yaml", "pydantic_core", "pyarrow", "PIL", "safetensors_rust")
EXIT_UNWRITTEN = 120  # as Python itself ends where its output cannot be written


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rayfed-kd", message="%(package)s %(version)s")
@click.pass_context
def commands(context: click.Context) -> None:
    """Simulate federated knowledge distillation, on one machine or a Ray cluster."""
    context.ensure_object(Interruptions)  # `main` gives its own, whose handlers are in place


for _module in (run_commands, study_commands, listing_commands, data_commands):
    for _command in _module.COMMANDS:
        commands.add_command(_command)


def main() -> NoReturn:
    """Run the command line; an error becomes one message and an exit code, never a stack trace."""
    interruptions = Interruptions()
    with interruptions.handled():
        code = _exit_code(interruptions)
    sys.exit(code)


def program() -> NoReturn:
    """Run the command line as a process of its own: `main`, and the process ends at once.

    Python would first take down every object of every library, which takes a second where torch is loaded.
    What was registered for the end is called, and output is written. All files are closed before.
    """
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # nobody reads any longer, or the disk is full
        code = code or EXIT_UNWRITTEN
    os._exit(code)


def _says_how_keys_are_written(error: click.ClickException) -> str:
    """A line for who took a recipe's key for an option, as other tools have it; "" for all else."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return ""
    if not {"overrides", "configs"} & {parameter.name for parameter in error.ctx.command.params}:
        return ""
    return f"Keys of a recipe are written as {error.option_name.lstrip('-')}=VALUE."


def _exit_code(interruptions: Interruptions) -> int:
    try:
        code: Any = commands.main(standalone_mode=False, obj=interruptions)
    except click.exceptions.Abort as stop:  # click raises this from a KeyboardInterrupt
        return interruptions.end(stop.__cause__.args if stop.__cause__ else ())
    except KeyboardInterrupt as stop:
        return interruptions.end(stop.args)
    except click.ClickException as error:
        error.show()
        if line := _says_how_keys_are_written(error):
            click.echo(line, err=True)
        return error.exit_code
    except RayfedError as error:
        click.echo(f"error: {error}", err=True)
        return error.exit_code
    except Exception as error:
        # What nobody turned into a message is about a file or a value from outside, or a fault of ours.
        if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] not in READERS:
            raise
        from rayfed_kd.recipe.registry import blame

        # The operating system names file and fault; of a library's error the line says what was read.
        click.echo(f"error: {error if isinstance(error, OSError) else blame(error)}", err=True)
        return RecipeError.exit_code
    return code if isinstance(code, int) else 0
