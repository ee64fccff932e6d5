"""What a run shows while it goes, where nobody listens to it otherwise: in a notebook, one line."""

from __future__ import annotations

import sys
from typing import Any

from rayfed_kd.experiment.result import OnEvent, Tell
from rayfed_kd.results.telling import Event, ignore


def listeners(progress: bool | None, on_event: OnEvent | None, tell: Tell | None) -> tuple[OnEvent, Tell]:
    """Who listens to a run.

    Args:
        progress: show each round in one line that is rewritten; None: if this is a notebook.
        on_event, tell: the caller's own listeners, which are called in place of the line; None: none.
    """
    if progress if progress is not None else in_notebook():
        line = _RewrittenLine()
        return on_event or line.round, tell or line.message
    return on_event or ignore, tell or ignore


def in_notebook() -> bool:
    """Whether the code runs in a Jupyter kernel, so that what it prints stands in a cell."""
    ipython = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class _RewrittenLine:
    """One line for the newest round. A carriage return rewrites it in a notebook and in a terminal."""

    def __init__(self) -> None:
        self._length = 0

    def round(self, event: Event) -> None:
        from rayfed_kd.results.console import round_line

        text = round_line(event)
        last = event["round"] == event["rounds"]
        sys.stdout.write(f"\r{text.ljust(self._length)}" + ("\n" if last else ""))
        sys.stdout.flush()
        self._length = 0 if last else len(text)

    def message(self, text: str) -> None:
        sys.stdout.write(("\n" if self._length else "") + f"{text}\n")
        self._length = 0
