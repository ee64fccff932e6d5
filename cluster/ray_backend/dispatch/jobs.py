"""Jobs for client actors, a step, a group of steps or an evaluation, and how long clients' steps take.

That is learned from steps that ended, by step, client, architecture and host. It decides what starts first
and what crosses together, never a result.
"""

from __future__ import annotations

import math
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
        summed: sizes of the groups in which its calls train, if their host sums the replies; else empty.
    """

    number: int
    calls: Sequence[Any]
    futures: Sequence[Future[Any]]
    samples: int
    lost: int = 0
    summed: Sequence[int] = ()

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


def samples_of(call: Any, sizes: Sequence[int]) -> int:
    """Number of samples that a call processes.

    Args:
        call: a step or an evaluation.
        sizes: [K] training samples of each client.
    """
    if isinstance(call, EvaluationCall):
        return call.stop - call.start
    return sizes[call.client if isinstance(call, PersonalCall) else call.facts.client]


SHARE = 0.25  # of a step's surprise that is put down to its host
LEAST_S = 1e-6  # a step that the clock could not see
STEPS = 4  # hosts within a factor of 2 ** (1 / STEPS) count as equally fast


class Pace:
    """Predicts how long steps take.

    A step's seconds are the client's own, as they would be on an average host, times the host's slowness.
    A client that has not taken the step yet counts as others of its architecture do, sample by sample; an
    architecture that has not, as the mean of those that have.

    Args:
        sizes: [K] training samples of each client.
        kinds: [K] each client's architecture; empty: all have the same.
    """

    def __init__(self, sizes: Sequence[int], kinds: Sequence[str] = ()) -> None:
        self._sizes, self._kinds = sizes, kinds
        self._own = dict[tuple[str, int], float]()  # step and client -> seconds
        self._rates = dict[str, dict[str, float]]()  # step -> architecture -> seconds per sample
        self._slowness = dict[int, float]()  # host -> factor

    def note(self, host: int, call: StepCall, seconds: float) -> bool:
        """Note how long a step took that had the host for itself.

        Returns: whether the step was never seen at a client of this architecture before.
        """
        client, seconds = call.facts.client, max(seconds, LEAST_S)
        slowness = self._slowness.get(host, 1.0)
        expected_s = self._own.get((call.step, client))
        if expected_s is not None:
            slowness *= (seconds / (expected_s * slowness)) ** SHARE
            self._slowness[host] = slowness
        own_s = self._own[call.step, client] = seconds / slowness
        rates, kind = self._rates.setdefault(call.step, {}), self._kind(client)
        new = kind not in rates
        rates[kind] = own_s / max(self._sizes[client], 1)
        return new

    def expected_s(self, call: StepCall) -> float:
        """Expected seconds of a step; infinite if no step of that name has ended yet."""
        # Infinite: a step of unknown length goes alone, and its end tells the pace.
        return self._expected_s(call.step, call.facts.client, math.inf)

    def work(self, call: StepCall) -> float:
        """What orders steps: expected seconds, or samples where no step of that name has ended yet."""
        return self._expected_s(call.step, call.facts.client, 1.0)

    def slowness(self, host: int) -> int:
        """A host's place among others, the fastest first; equal for those that are about as fast."""
        return round(STEPS * math.log2(self._slowness.get(host, 1.0)))

    def _expected_s(self, step: str, client: int, unknown: float) -> float:
        own_s = self._own.get((step, client))
        if own_s is not None:
            return own_s
        rates = self._rates.get(step, {})
        mean = sum(rates.values()) / len(rates) if rates else unknown
        # An empty client's step is taken for that of one sample.
        return rates.get(self._kind(client), mean) * max(self._sizes[client], 1)

    def _kind(self, client: int) -> str:
        return self._kinds[client] if self._kinds else ""
