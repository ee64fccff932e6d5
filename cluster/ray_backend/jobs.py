"""What waits for a client actor: a step, a group of steps, or an evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from cluster.engine.calls import EvaluationCall, PersonalCall, StepCall, StepResult


@dataclass(order=True)
class Job:
    """Calls that go to one host together, longest first, so that no host is left with a long one at the end.

    Attributes:
        priority: minus its samples, then the order in which jobs came.
        calls: one, or the steps of a group that trains together.
        futures: one a call.
        lost: how often its host was.
    """

    priority: tuple[float, int]
    calls: Sequence[Any] = field(compare=False)
    futures: Sequence[Future[Any]] = field(compare=False)
    lost: int = field(default=0, compare=False)

    def __str__(self) -> str:
        if len(self.calls) == 1:
            return str(self.calls[0])
        clients = ", ".join(str(call.facts.client) for call in self.calls)
        return f"round {self.calls[0].facts.round}, clients {clients}, {self.calls[0].step}"

    @property
    def client(self) -> int | None:
        """The client that it is about, of a group the first; None for a shared model's evaluation."""
        call = self.calls[0]
        if isinstance(call, EvaluationCall):
            return None
        client: int = call.client if isinstance(call, PersonalCall) else call.facts.client
        return client

    @property
    def step(self) -> StepCall | None:
        """The step that it is; None for groups and evaluations."""
        call = self.calls[0]
        return call if len(self.calls) == 1 and isinstance(call, StepCall) else None

    @property
    def done(self) -> bool:
        """Whether nobody waits for it any more: it was given up, or stopped."""
        return all(future.done() for future in self.futures)


class Pace:
    """How long steps take, by what others of their kind took.

    Args:
        sizes: [K] training samples.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes, self._seconds = sizes, dict[str, float]()  # seconds a sample of each step, at last

    def note(self, call: StepCall, result: StepResult) -> None:
        """A step ended. One that should have trained with others says nothing of a step alone."""
        if result.facts.alone is None:
            self._seconds[call.step] = result.facts.seconds / max(self._sizes[call.facts.client], 1)

    def expected_s(self, call: StepCall) -> float:
        """How long a step will take; infinite if none of its kind has ended yet."""
        pace = self._seconds.get(call.step)
        return math.inf if pace is None else pace * self._sizes[call.facts.client]


def short_steps(
    first: Job, waiting: Iterable[Job], pace: Pace, share: int, least_s: float, most_s: float
) -> list[Job]:
    """Short steps that may go along with a first one: a call of Ray's costs more than each of them.

    Args:
        first: goes anyway. A job whose host was lost goes alone: it may be why.
        waiting: candidates, in order.
        share: of them at most, if they take `least_s` together.
        most_s: what goes along takes no more than this, with the first.
    """
    chosen: list[Job] = []
    if first.step is None or first.lost:
        return chosen
    work_s = pace.expected_s(first.step)
    for job in waiting:
        if work_s >= most_s or (len(chosen) >= share and work_s >= least_s):
            break
        if job.step is not None and not job.lost and not job.done:
            work_s += pace.expected_s(job.step)
            chosen.append(job)
    return chosen
