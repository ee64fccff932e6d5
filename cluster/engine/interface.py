"""What the server needs of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from cluster.engine.calls import EvaluationCall, EvaluationResult, PersonalCall, StepCall, StepResult
from rayfed_kd.protocol import Array, Handle


class Engine(Protocol):
    """Runs calls on hosts. Called from the server's round thread."""

    def publish(self, arrays: Mapping[str, Array]) -> Handle:
        """Makes arrays readable by every host; one copy, whoever reads."""
        ...

    def submit(self, call: StepCall) -> Future[StepResult]:
        """Starts a step on some host."""
        ...

    def submit_together(self, calls: Sequence[StepCall]) -> Future[list[StepResult]]:
        """Starts a group's steps on one host, as one batched program where they can be."""
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

    def kept(self, result: StepResult) -> StepResult:
        """The result with a copy that outlives the machine of the host that made it."""
        ...


@dataclass(frozen=True)
class Pending:
    """The result to come of one step, which may run in a group.

    Attributes:
        future: of its result, or of its group's results.
        place: in its group; None: it runs by itself.
    """

    future: Future[Any]
    place: int | None = None

    def result(self) -> StepResult:
        """Waits for it. Raises: what the step raised, or another of its group."""
        found = self.future.result()
        result: StepResult = found if self.place is None else found[self.place]
        return result


def submit_group(engine: Engine, calls: Sequence[StepCall]) -> list[Pending]:
    """Starts a group's steps; a group of one is a plain step."""
    if len(calls) == 1:
        return [Pending(engine.submit(calls[0]))]
    whole = engine.submit_together(calls)
    return [Pending(whole, place) for place in range(len(calls))]
