"""What an interrupted command says: that finished work is kept, and which command goes on with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

# As shells have it: 128 and the signal's number, 2 for SIGINT and 15 for SIGTERM.
EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143


@contextmanager
def resumed_by(command: str) -> Iterator[None]:
    """Let an interruption within the block name this command as the one that goes on.

    A comparison and a search are gone on with as a whole. Without this the message would name `resume` for
    the one run that was cut off.

    Args:
        command: as `the same compare command again`.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(command) from None


def report_interruption(details: Sequence[object], *, terminated: bool) -> int:
    """Say on standard error how to go on.

    Args:
        details: the arguments of the KeyboardInterrupt: the command that goes on, or nothing.
        terminated: whether SIGTERM came, and not Ctrl-C.

    Returns: the exit code.
    """
    way_on = f"; {details[0]} goes on" if details and details[0] else ""
    click.echo(f"interrupted: finished work is kept{way_on}", err=True)
    return EXIT_TERMINATED if terminated else EXIT_INTERRUPTED
