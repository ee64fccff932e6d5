"""The local engine: one host in the calling process, without Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np

from rayfed_kd.cluster.engine.calls import EvaluationCall, Held, PersonalCall, StepCall, StepResult
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.running import cut, evaluate, run_together
from rayfed_kd.cluster.engine.summing import sum_groups
from rayfed_kd.protocol import Array, Handle
from rayfed_kd.protocol.summed import GroupSum

T = TypeVar("T")


class LocalEngine:
    """One host in the calling process: for tests, debuggers and small runs.

    Clients' states stay on the host's device, and are packed when a checkpoint asks for them.

    Every call runs at once in the caller's thread, so a step's error is raised by `submit` itself, and all
    futures that it returns are done.

    Args:
        host: the host that runs all calls.
    """

    def __init__(self, host: Host) -> None:
        self._host = host

    def publish(self, arrays: Mapping[str, Array]) -> Handle:
        """A handle on copies of the arrays: what was sent stays, whatever becomes of the sender's tensors."""
        return Held({n: part.copy() if isinstance(part, np.ndarray) else part for n, part in arrays.items()})

    def submit(self, calls: Sequence[StepCall], summed_sizes: Sequence[int] = ()) -> list[Future[StepResult]]:
        """Run the steps now; the futures are done."""
        if summed_sizes:
            done = sum_groups(self._host, cut(calls, summed_sizes))
            group = GroupSum(Held(done.sums), [call.facts.client for call in calls])
            return [
                _done(StepResult(facts, group, state))
                for facts, state in zip(done.facts, done.states, strict=True)
            ]
        return [
            _done(StepResult(facts, Held(parts), state))
            for facts, parts, state in run_together(self._host, calls)
        ]

    def cancel(self) -> None:
        """Nothing: no call is under way."""

    def durable(self, result: StepResult) -> StepResult:
        """The same result: there is no other machine that could be lost."""
        return result

    def evaluate(self, call: EvaluationCall | PersonalCall) -> Future[Any]:
        """Evaluate a shared model, or a client's own, now; the future is done."""
        return _done(evaluate(self._host, call))


def _done(result: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(result)
    return future
