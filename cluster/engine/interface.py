"""What the server needs of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from cluster.engine.calls import EvaluationCall, EvaluationResult, PersonalCall, StepCall, StepResult
from rayfed_kd.protocol import Array, Handle


class Engine(Protocol):
    """Runs calls on hosts. Called from the server's round thread."""

    def publish(self, arrays: Mapping[str, Array]) -> Handle:
        """Makes arrays readable by every host; one copy, whoever reads."""
        ...

    def submit(self, calls: Sequence[StepCall]) -> list[Future[StepResult]]:
        """Starts steps on one host; several as one batched program, where they can be.

        Returns: one future a call. If a step of several raises, all of them raise that.
        """
        ...

    @property
    def hosts(self) -> int:
        """How many there are."""
        ...

    def evaluate(self, call: EvaluationCall) -> Future[EvaluationResult]:
        """Starts an evaluation on some host."""
        ...

    def evaluate_personal(self, call: PersonalCall) -> Future[int]:
        """Starts an evaluation of a client's own model on some host; right predictions."""
        ...

    def durable(self, result: StepResult) -> StepResult:
        """The result with a copy that outlives the machine of the host that made it."""
        ...
