"""What a command answers to Ctrl-C and SIGTERM.

The first Ctrl-C is answered at once, and the command ends as soon as its run has written a checkpoint. The
second one leaves without that checkpoint. Files are written aside and renamed, so a process may end anywhere.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

import click

# As shells have it: 128 and the signal's number, 2 for SIGINT and 15 for SIGTERM.
EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143
RAY_STARTS_S = 2.0  # seconds for a Ray that is just starting to be ended in good order
RAY_THREAD = "ray, left while it starts"  # as `rayfed_kd.cluster.ray_backend.session` names it
SHOW_CURSOR = "\x1b[?25h"  # the live line hides it
CLEAR_LINE = "\r\x1b[2K"  # the live line, which is drawn again below the answer
# It lists the runs under way. Not imported here: without it there is none, and `--help` stays quick.
RESUMABILITY = "rayfed_kd.experiment.resumability"
BEFORE_A_RUN = "stopping; press Ctrl-C again to leave at once"
IN_A_RUN = "stopping after a checkpoint, if a round is complete; press Ctrl-C again to leave without it"


class Interruptions:
    """The signal handlers of one command.

    Attributes:
        terminated: whether SIGTERM came.
    """

    def __init__(self) -> None:
        self.terminated = False
        self._presses = 0
        self._whole_command = ""  # within `resumed_by`
        self._on_stop: list[Callable[[], None]] = []  # within `calling`

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Answer both signals while the block runs.

        A shell lets background commands ignore SIGINT; they still do.
        """
        before = {signal.SIGTERM: signal.signal(signal.SIGTERM, self._terminate)}
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            before[signal.SIGINT] = signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def calling(self, stopping: Callable[[], None]) -> Iterator[None]:
        """Let an interruption within the block call a function, from the signal's handler."""
        self._on_stop.append(stopping)
        try:
            yield
        finally:
            self._on_stop.remove(stopping)

    @contextmanager
    def resumed_by(self, command: str) -> Iterator[None]:
        """Let an interruption within the block name this command as the one that goes on.

        A comparison and a search are gone on with as a whole. Without this the message would name `resume`
        for the one run that was cut off.

        Args:
            command: as `the same compare command again`.
        """
        self._whole_command = command
        try:
            yield
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"finished work is kept; {command} goes on") from None
        finally:
            self._whole_command = ""

    def end(self, details: Sequence[object]) -> int:
        """Say on standard error how to go on.

        A Ray that is still starting is not waited for, as that takes up to half a minute: the process ends at
        once, and Ray's processes with it.

        Args:
            details: the arguments of the KeyboardInterrupt: how to go on, or nothing.

        Returns: the exit code.
        """
        way_on = details[0] if details and details[0] else "nothing was begun"
        click.echo(f"interrupted: {way_on}", err=True)
        code = EXIT_TERMINATED if self.terminated else EXIT_INTERRUPTED
        starting = [thread for thread in threading.enumerate() if thread.name == RAY_THREAD]
        for thread in starting:
            thread.join(RAY_STARTS_S)
        if any(thread.is_alive() for thread in starting):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._presses += 1
        if self._presses == 1:
            self._call()
            _answer(IN_A_RUN if _ways_on() else BEFORE_A_RUN)
            raise KeyboardInterrupt
        way_on = f"{self._whole_command} goes on" if self._whole_command else ""
        _answer(f"left at once: {way_on or '; '.join(_ways_on()) or 'nothing was begun'}")
        # No exception: what is under way, as a picture, would be waited for.
        os._exit(EXIT_INTERRUPTED)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        signal.alarm(0)  # Ray's own handler, which came first, would abort the process after 3 s
        self.terminated = True
        self._call()
        raise KeyboardInterrupt

    def _call(self) -> None:
        for stopping in self._on_stop:
            stopping()


def _answer(text: str) -> None:
    """Write a line to standard error from a signal handler, which may have interrupted another write."""
    terminal = sys.stderr.isatty()
    line = f"{CLEAR_LINE}{text}{SHOW_CURSOR}\n" if terminal else f"{text}\n"
    with suppress(OSError, ValueError):  # closed, or no file as in a test
        os.write(sys.stderr.fileno(), line.encode())


def _ways_on() -> list[str]:
    """How each run under way goes on."""
    running = sys.modules.get(RESUMABILITY)
    return [] if running is None else [*map(running.way_on, running.RUNS_UNDER_WAY)]
