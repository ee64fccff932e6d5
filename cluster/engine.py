"""What the server needs of an engine, and the engine that needs nobody: one host in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from cluster.calls import EvaluationCall, EvaluationResult, Held, PersonalCall, StepCall, StepResult
from cluster.host import Host
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


class LocalEngine:
    """One host in the calling process: for tests, debuggers and small runs."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def publish(self, arrays: Mapping[str, Array]) -> Handle:
        """The arrays as they are."""
        return Held(arrays)

    def submit(self, call: StepCall) -> Future[StepResult]:
        """Runs the step now."""
        future: Future[StepResult] = Future()
        facts, parts, state = self._host.step(call)
        future.set_result(StepResult(facts, Held(parts), Held(state)))
        return future

    def submit_together(self, calls: Sequence[StepCall]) -> Future[list[StepResult]]:
        """Runs the group now."""
        future: Future[list[StepResult]] = Future()
        done = zip(*self._host.steps(calls), strict=True)
        future.set_result([StepResult(facts, Held(parts), Held(state)) for facts, parts, state in done])
        return future

    @property
    def hosts(self) -> int:
        """One."""
        return 1

    def kept(self, result: StepResult) -> StepResult:
        """The result as it is: there is one process."""
        return result

    def evaluate(self, call: EvaluationCall) -> Future[EvaluationResult]:
        """Evaluates now."""
        future: Future[EvaluationResult] = Future()
        future.set_result(self._host.evaluate(call))
        return future

    def evaluate_personal(self, call: PersonalCall) -> Future[int]:
        """Evaluates now."""
        future: Future[int] = Future()
        future.set_result(self._host.evaluate_personal(call))
        return future
