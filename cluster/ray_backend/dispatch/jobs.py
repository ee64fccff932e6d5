"""Jobs for client actors: a step, a group of steps or an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rayfed_kd.cluster.engine.calls import EvaluationCall, PersonalCall, StepCall


@dataclass(eq=False)
class Job:
    """Calls that go to one host together.

    Attributes:
        number: in order of submission.
        calls: one call, or the steps of a group that trains as one batch.
        futures: one per call.
        samples: that its calls process.
        lost: how often the job's host was lost.
        summed_sizes: sizes of the groups in which its calls train, if their host sums replies; else empty.
    """

    number: int
    calls: Sequence[Any]
    futures: Sequence[Future[Any]]
    samples: int
    lost: int = 0
    summed_sizes: Sequence[int] = ()

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
        return call if len(self.calls) == 1 and not self.summed_sizes and isinstance(call, StepCall) else None

    @property
    def done(self) -> bool:
        """Whether nothing waits for its results any more: it was given up or stopped."""
        return all(future.done() for future in self.futures)


def samples_of(call: Any, sizes: Sequence[int]) -> int:
    """Number of samples that a call processes.

    Args:
        call: a step or an evaluation.
        sizes: [K] training samples of each client.
    """
    if isinstance(call, EvaluationCall):
        return call.stop - call.start
    return sizes[call.client if isinstance(call, PersonalCall) else call.facts.client]
