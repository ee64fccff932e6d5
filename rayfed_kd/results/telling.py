"""What a run tells those who watch it: its rounds' events, and lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict


class Event(TypedDict):
    """What `on_event` is called with after each round.

    Attributes:
        run: name of the run's folder; `ROW, seed 1` in a comparison, `trial 3` in a search.
        round, rounds: the round, from 1, and how many the recipe asks for.
        wall_s, sim_s: real and simulated seconds since the start; without a clock sim_s is None.
        round_s: real seconds of this round.
        logged: name -> mean over the round, of what the method logs.
        bytes_up, bytes_down: of all messages of the round.
        cohort: how many clients took part.
        bad_replies: how many replies were left out.
        metrics: evaluated model -> its row of the table `metrics`, with the values of the table `scores` as
            local_macro_f1; empty if the round was not evaluated.
        epsilon, local_epsilon: with `privacy` in the recipe, of all rounds so far.
    """

    run: str
    round: int
    rounds: int
    wall_s: float
    sim_s: float | None
    round_s: float
    logged: dict[str, float]
    bytes_up: int
    bytes_down: int
    cohort: int
    bad_replies: int | None
    metrics: dict[str, dict[str, Any]]
    epsilon: NotRequired[float | None]
    local_epsilon: NotRequired[float | None]


def ignore(_: object) -> None:
    """Hear nothing of it."""


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
    phase: Callable[[str], None] = ignore
    begin: Callable[[Mapping[str, str]], None] = ignore

    def __call__(self, line: str) -> None:
        """Pass on a line."""
        self.line(line)


def as_teller(tell: Callable[[str], None]) -> Teller:
    """The teller itself; a plain function becomes one that hears lines alone."""
    return tell if isinstance(tell, Teller) else Teller(tell)
