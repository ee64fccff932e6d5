"""What an author of a schedule implements, and `sync`: whom to ask, when an update ends, what is too late.

An update is one change of the server's model: a "round" in the tables. A schedule is a pure object.
Each answer is a function of its options, the run's facts and the arguments.
It keeps no state of its own, so a resumed run gets the answers of an uninterrupted one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from rayfed_kd.errors import RunError
from rayfed_kd.recipe.registry import annotated_options
from rayfed_kd.recipe.seeds import numpy_stream
from rayfed_kd.recipe.strict import Strict
from rayfed_kd.timing.update_rule import UpdateRule


class ScheduleOptions(Strict):
    """Base of every schedule's options: the keys of a recipe's `schedule` beside `name`."""


@dataclass(frozen=True)
class ScheduleFacts:
    """What a schedule knows of the run.

    Attributes:
        clients: K, the recipe's `partition.clients`.
        cohort: m, the number of clients that the recipe's `sampling` gives, 1 to K.
        seed: the run's.
        join_probability: with which each client joins a round, under `sampling.poisson`; None: the cohort has
            a fixed size.
    """

    clients: int
    cohort: int
    seed: int
    join_probability: float | None = None


@dataclass(frozen=True)
class Progress:
    """How far an update is when the server asks its schedule.

    Attributes:
        round: the number of the update, from 1.
        replies: replies so far that the update uses.
        at_work: clients at work now.
        starting: whether the update begins; nobody was asked for it yet.
        past_deadline: whether `deadline_s` simulated seconds have passed since its exchange began.
    """

    round: int
    replies: int
    at_work: int
    starting: bool = False
    past_deadline: bool = False


class Schedule(ABC):
    """Base of every schedule. A subclass defines `is_complete`, and overrides what it does otherwise.

    The defaults are those of synchronous rounds: each update samples a cohort of m clients, clients that are
    still at work when it ends are given up, and the new model is the mean of the replies.

    Args:
        options: the checked options of the recipe's `schedule`. A subclass says their model by annotating
            `options` with it; without an annotation the schedule has no options.
        facts: of the run.

    Raises: RecipeError if an option does not fit the facts.

    Attributes:
        asynchronous: True if a client that replied is replaced at once, so that clients of several updates
            are at work together. Only methods with one exchange, down and up, run under such a schedule.
        needs_clock: whether it asks which reply comes first, which `clock.name: none` does not answer.
    """

    options: Any
    asynchronous: ClassVar[bool] = False
    needs_clock: ClassVar[bool] = True

    def __init__(self, options: Any, facts: ScheduleFacts) -> None:
        self.options, self.facts = options, facts

    @classmethod
    def options_model(cls) -> type[ScheduleOptions]:
        """The model of its options."""
        return annotated_options(cls, ScheduleOptions)

    def check(self, least_seconds: Sequence[float]) -> None:  # noqa: B027 a default: nothing to refuse
        """Refuse what is known to fail before the first round.

        Args:
            least_seconds: [K] simulated seconds that each client needs for a step at the least; 0 where
                nothing is known.

        Raises: RecipeError
        """

    @property
    def concurrency(self) -> int:
        """How many clients to ask at the start of an update; if `asynchronous`, how many to keep at work.

        From 1 to K; `placement.clients_per_actor: auto` starts no more actors than so many.
        """
        return self.facts.cohort

    def clients_to_ask(self, progress: Progress) -> int:
        """How many clients to ask now: at the start of an update, and whenever no reply arrives this second.

        Clients that are not available are not asked, so that fewer may begin.
        """
        if self.asynchronous:
            return max(0, self.concurrency - progress.at_work)
        return self.concurrency if progress.starting else 0

    def sample(self, available: Sequence[int], count: int, draw: int) -> Sequence[int]:
        """The clients to ask: by default uniform without replacement, or each by itself (`poisson`).

        Args:
            available: ids, ascending, of clients that are not at work and whose devices are available.
            count: how many are wanted.
            draw: the number of this draw in the run, from 1; with the run's seed it decides.

        Returns: ids out of `available`, ascending, each once; at most `count`, any number under `poisson`.
        """
        stream = numpy_stream(self.facts.seed, "cohort", draw)
        if self.facts.join_probability is not None:
            joins = stream.random(len(available)) < self.facts.join_probability
            return [client for client, joined in zip(available, joins.tolist(), strict=True) if joined]
        chosen = stream.choice(len(available), min(count, len(available)), replace=False)
        return sorted(available[place] for place in chosen.tolist())

    @abstractmethod
    def is_complete(self, progress: Progress) -> bool:
        """Whether an update has the replies that it needs.

        The server asks after each reply and at the deadline. In any case an update ends when nobody is at
        work any more. An update without a reply ends the run.
        """

    def deadline_s(self, round_index: int) -> float:
        """Simulated seconds from the start of each exchange of update `round_index` to its deadline."""
        return math.inf

    @property
    def drops_late(self) -> bool:
        """Whether clients that are at work when an update ends are given up.

        If not, their replies are part of the update during which they arrive, with the staleness that they
        then have. Only methods with one exchange run under such a schedule.
        """
        return not self.asynchronous

    def is_too_late(self, staleness: int) -> bool:
        """Whether a reply of this staleness is dropped when it arrives; its client's state then stays."""
        return False

    @property
    def rule(self) -> UpdateRule | None:
        """How replies become the server's new vector; None, the default: their mean, weighed by the method.

        The server adds `borders`, the number of parameters of each model.
        """
        return None


class Synchronous(Schedule):
    """Each round waits for its whole cohort."""

    needs_clock: ClassVar[bool] = False

    def is_complete(self, progress: Progress) -> bool:
        """Whether no client is at work any more."""
        return progress.at_work == 0


def check_sample(sampled: Sequence[int], available: Sequence[int], count: int) -> None:
    """Check that a schedule sampled as `Schedule.sample` promises; users may write their own.

    Args:
        sampled: ids that the schedule returned.
        available: ids that it could choose from, ascending.
        count: how many were wanted at most.
    Raises: RunError if not.
    """
    # A binary search, not a set of those available: there may be millions of clients.
    places = [bisect_left(available, client) for client in sampled]
    present = [
        place < len(available) and available[place] == c for place, c in zip(places, sampled, strict=True)
    ]
    # Strictly ascending, so that each client is there once.
    if len(sampled) > count or not all(present) or any(left >= right for left, right in pairwise(sampled)):
        raise RunError(
            f"schedule: it sampled clients {list(sampled)}; expected at most {count} of the {len(available)} "
            "that are available, ascending, each once"
        )
