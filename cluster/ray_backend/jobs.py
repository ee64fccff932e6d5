"""Jobs that wait for a client actor: a step, a group of steps, or an evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from cluster.engine.calls import EvaluationCall, PersonalCall, StepCall, StepResult


@dataclass(order=True)
class Job:
    """Calls that go to one host together. Jobs sort longest first: a long one that starts last ends last.

    Attributes:
        priority: minus the number of samples, then the job's number in order of submission.
        calls: one call, or the steps of a group that trains as one batch.
        futures: one per call.
        lost: how often the job's host was lost.
        summed: sizes of the groups in which its calls train, if their host sums the replies; else empty.
    """

    priority: tuple[float, int]
    calls: Sequence[Any] = field(compare=False)
    futures: Sequence[Future[Any]] = field(compare=False)
    lost: int = field(default=0, compare=False)
    summed: Sequence[int] = field(default=(), compare=False)

    def __str__(self) -> str:
        if len(self.calls) == 1:
            return str(self.calls[0])
        clients = ", ".join(str(call.facts.client) for call in self.calls)
        return f"round {self.calls[0].facts.round}, clients {clients}, {self.calls[0].step}"

    @property
    def client(self) -> int | None:
        """The job's client, of a group the first; None for the evaluation of a shared model."""
        call = self.calls[0]
        if isinstance(call, EvaluationCall):
            return None
        client: int = call.client if isinstance(call, PersonalCall) else call.facts.client
        return client

    @property
    def step(self) -> StepCall | None:
        """The job's single step; None for groups, summed replies and evaluations."""
        call = self.calls[0]
        return call if len(self.calls) == 1 and not self.summed and isinstance(call, StepCall) else None

    @property
    def done(self) -> bool:
        """Whether nothing waits for its results any more: it was given up or stopped."""
        return all(future.done() for future in self.futures)


class Pace:
    """Predicts how long steps take, from the last step of the same name.

    Args:
        sizes: [K] training samples of each client.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes, self._seconds = sizes, dict[str, float]()  # step -> its latest seconds per sample

    def note(self, call: StepCall, result: StepResult) -> None:
        """Note a step's duration. Steps of a group are left out: they tell nothing of a step alone."""
        if result.facts.alone is None:
            self._seconds[call.step] = result.facts.seconds / max(self._sizes[call.facts.client], 1)

    def expected_s(self, call: StepCall) -> float:
        """Expected seconds of a step; infinite if no step of that name has ended yet."""
        pace = self._seconds.get(call.step)
        # Infinite: a step of unknown length goes alone, and its end tells the pace.
        return math.inf if pace is None else pace * self._sizes[call.facts.client]


def short_steps(
    first: Job, waiting: Iterable[Job], pace: Pace, share: int, least_s: float, most_s: float
) -> list[Job]:
    """Choose short steps to send in one call with a first one, as a call to Ray costs more than each.

    Args:
        first: the job that is sent anyway. If its host was lost before, it goes alone: it may be the cause.
        waiting: candidates, in order.
        pace: predicts durations.
        share: most steps to choose, once `least_s` seconds of work are reached.
        least_s: seconds of work up to which `share` does not count.
        most_s: no step is added once the work has reached so many seconds.
    Returns: the chosen jobs.
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
