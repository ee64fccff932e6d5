"""What a run tells those who watch it, beside its rounds' events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


def _silent(_: object) -> None:
    pass


@dataclass(frozen=True)
class Teller:
    """Listeners to a run. It can stand wherever a run takes a function `tell` of a line.

    Attributes:
        line: called with each line that the user should read.
        phase: called with what the run waits for before its first round, as `decoding mnist 40 %`; with ""
            when the first round begins.
        begin: called once with what runs: name -> text, as `describe_run` makes it.
    """

    line: Callable[[str], None]
    phase: Callable[[str], None] = _silent
    begin: Callable[[Mapping[str, str]], None] = _silent

    def __call__(self, line: str) -> None:
        """Pass on a line."""
        self.line(line)


def as_teller(tell: Callable[[str], None]) -> Teller:
    """The teller itself; a plain function becomes one that hears lines alone."""
    return tell if isinstance(tell, Teller) else Teller(tell)
