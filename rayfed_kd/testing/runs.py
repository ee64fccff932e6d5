"""Runs of a setting whose outcomes can be compared: recorded, in another order, from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from cluster.engine.calls import StepCall, StepResult
from cluster.engine.host import Host
from cluster.engine.local import LocalEngine
from cluster.server.checkpoints import Checkpointer, Snapshot
from cluster.server.simulation import RoundRecord, Simulation
from rayfed_kd.errors import RunError
from rayfed_kd.protocol import shared_vectors
from rayfed_kd.protocol.codec import UnstorableError
from rayfed_kd.setting.setting import Setting
from rayfed_kd.testing.rules import ContractError
from rayfed_kd.testing.watching import content

MEASURED = ("wall_s", "dispatch_s", "client_s", "server_s", "evaluate_s")  # seconds differ from run to run


class RecordingEngine(LocalEngine):
    """Remembers the last call of each step in each round, with its result."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.calls: dict[tuple[int, str], tuple[StepCall, StepResult]] = {}

    def submit(self, calls: Sequence[StepCall]) -> list[Future[StepResult]]:
        futures = super().submit(calls)
        for call, future in zip(calls, futures, strict=True):
            if not call.observing:
                self.calls[call.facts.round, call.step] = call, future.result()
        return futures


class BackwardsEngine(LocalEngine):
    """Runs what waits last first, as soon as a result is waited for."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._waiting: list[tuple[Sequence[StepCall], Sequence[Future[StepResult]]]] = []

    def submit(self, calls: Sequence[StepCall]) -> list[Future[StepResult]]:
        futures: list[Future[StepResult]] = [_Lazy(self._run) for _ in calls]
        self._waiting.append((calls, futures))
        return futures

    def _run(self) -> None:
        while self._waiting:
            calls, futures = self._waiting.pop()
            for future, done in zip(futures, super().submit(calls), strict=True):
                future.set_result(done.result())


class _Lazy(Future[StepResult]):
    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self._work = work

    def result(self, timeout: float | None = None) -> StepResult:
        if not self.done():
            self._work()
        return super().result(timeout)


class WatchingCheckpointer(Checkpointer):
    """Writes a checkpoint after the first round, and looks at the server's states after each."""

    before: tuple[Any, Any] | None = None

    def due(self, round_index: int) -> bool:
        return True

    def save(self, snapshot: Snapshot) -> None:
        where = f"round {snapshot.round}"
        if self.before is not None and content(self.before[0]) != self.before[1]:
            raise ContractError("server state", where, "the server's state before it has changed")
        try:
            self.before = snapshot.server, content(snapshot.server)
        except RunError as error:
            raise ContractError("storable", f"{where}, server", str(error)) from None
        if snapshot.round == 1:
            super().save(snapshot)


@dataclass
class Outcome:
    """What a run decided: rows by table and round, and the last models."""

    rows: dict[tuple[str, int], Any] = field(default_factory=dict)
    models: dict[str, bytes] = field(default_factory=dict)

    def record(self, record: RoundRecord) -> None:
        for name, rows in record.tables.items():
            if name != "hosts":
                self.rows[name, record.round] = [
                    {key: value for key, value in row.items() if key not in MEASURED} for row in rows
                ]

    def close(self, status: str) -> dict[str, Any]:
        return {}


def run_outcome(
    setting: Setting,
    engine: LocalEngine,
    keeper: WatchingCheckpointer | None = None,
    start: Snapshot | None = None,
) -> Outcome:
    outcome = Outcome()
    simulation = Simulation(setting, engine, outcome, checkpointer=keeper)
    try:
        simulation.run(start)
    except RunError as error:
        if isinstance(error, UnstorableError):
            raise ContractError("storable", "the server's state", str(error)) from None
        broken = error.__cause__
        if isinstance(broken, ContractError):  # a host told it as a bug of a step
            raise broken from None
        if "undeclared" in str(error):
            raise ContractError("declared", "the run", str(error)) from None
        raise
    models = shared_vectors(simulation.models)
    outcome.models = {name: vector.cpu().numpy().tobytes() for name, vector in models.items()}
    return outcome


def compare_outcomes(rule: str, where: str, outcome: Outcome, expected: Outcome) -> None:
    """The rounds that both have, and the last models."""
    for (name, index), rows in outcome.rows.items():
        if rows != expected.rows[name, index]:
            raise ContractError(rule, where, f"round {index} has other rows in the table {name}")
    for name, vector in outcome.models.items():
        if vector != expected.models[name]:
            raise ContractError(rule, where, f"the model {name} is another")
