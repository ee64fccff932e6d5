"""The engine that needs nobody: one host in the calling process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from cluster.engine.calls import EvaluationCall, EvaluationResult, Held, PersonalCall, StepCall, StepResult
from cluster.engine.host import Host
from rayfed_kd.protocol import Array, Handle


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
