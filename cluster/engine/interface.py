"""The interface through which the server uses an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from rayfed_kd.cluster.engine.calls import EvaluationCall, PersonalCall, StepCall, StepResult
from rayfed_kd.protocol import Array, Handle


class Engine(Protocol):
    """Runs calls on hosts. The server calls it from the thread that runs the rounds."""

    def publish(self, arrays: Mapping[str, Array]) -> Handle:
        """Make arrays readable by every host; all readers share one copy.

        Returns: a handle that can be part of calls.
        """

    def submit(self, calls: Sequence[StepCall], summed_sizes: Sequence[int] = ()) -> list[Future[StepResult]]:
        """Start steps on one host.

        Args:
            calls: several run as one batched program, unless their replies are summed.
            summed_sizes: if the host is to sum the replies, the sizes of the groups of calls that run as one
                batched program, in order; all results then have one `GroupSum` as their parts.
        Returns: one future per call. If one of several steps raises, all futures raise its error.
        """

    def evaluate(self, call: EvaluationCall | PersonalCall) -> Future[Any]:
        """Start the evaluation of a shared model, on any host, or of a client's own.

        Returns: of an EvaluationResult, or of a PersonalResult.
        """

    def cancel(self) -> None:
        """End what is under way, but for evaluations: the run is being stopped."""

    def durable(self, result: StepResult) -> StepResult:
        """Copy a result's arrays so that they survive the loss of the machine that computed them.

        Returns: the result with handles on the copies; the same result where nothing needs to be copied.
        """
