"""Runs of a setting whose outcomes can be compared: recorded, in another order, from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from rayfed_kd.cluster.engine.calls import StepCall, StepResult
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.server.checkpoints import Checkpointer
from rayfed_kd.cluster.server.round_tables import RoundRecord
from rayfed_kd.cluster.server.run_state import Snapshot
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.errors import FrozenError, RunError
from rayfed_kd.protocol import shared_vectors
from rayfed_kd.protocol.state_packing import UnstorableError
from rayfed_kd.setting.setting import Setting
from rayfed_kd.testing.rules import ContractError

MEASURED = ("wall_s", "dispatch_s", "client_s", "server_s", "evaluate_s")  # seconds differ from run to run


class RecordingEngine(LocalEngine):
    """Records the last call of each step in each round, with its result.

    Attributes:
        calls: (round, step) -> the call and its result.
    """

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.calls: dict[tuple[int, str], tuple[StepCall, StepResult]] = {}

    def submit(self, calls: Sequence[StepCall], summed_sizes: Sequence[int] = ()) -> list[Future[StepResult]]:
        """Run the steps and record all but observations, whose states are discarded."""
        futures = super().submit(calls, summed_sizes)
        for call, future in zip(calls, futures, strict=True):
            if not call.observing:
                self.calls[call.facts.round, call.step] = call, future.result()
        return futures


class BackwardsEngine(LocalEngine):
    """Runs the submitted steps in reverse order, as soon as one of their results is waited for."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._waiting: list[tuple[Sequence[StepCall], Sequence[int], Sequence[Future[StepResult]]]] = []

    def submit(self, calls: Sequence[StepCall], summed_sizes: Sequence[int] = ()) -> list[Future[StepResult]]:
        """Queue the steps; gives one future per call, whose `result` runs all that is queued."""
        futures: list[Future[StepResult]] = [_Lazy(self._run) for _ in calls]
        self._waiting.append((calls, summed_sizes, futures))
        return futures

    def _run(self) -> None:
        while self._waiting:
            calls, summed_sizes, futures = self._waiting.pop()
            for future, done in zip(futures, super().submit(calls, summed_sizes), strict=True):
                future.set_result(done.result())


class _Lazy(Future[StepResult]):
    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self._work = work

    def result(self, timeout: float | None = None) -> StepResult:
        if not self.done():
            self._work()
        return super().result(timeout)


class FirstCheckpointer(Checkpointer):
    """Writes a checkpoint after the first round alone."""

    def save(self, snapshot: Snapshot) -> None:
        """Save the first round's; a run asks after its last one as well."""
        if snapshot.round == 1:
            super().save(snapshot)


@dataclass
class Outcome:
    """A recorder that keeps what must not differ between two runs.

    Attributes:
        rows: (table, round) -> its rows, without measured seconds.
        models: name -> the bytes of the last evaluated model's vector.
    """

    rows: dict[tuple[str, int], Any] = field(default_factory=dict)
    models: dict[str, bytes] = field(default_factory=dict)

    def record(self, record: RoundRecord) -> None:
        """Keep a round's rows, without the table `hosts`: it measures."""
        for name, rows in record.tables.items():
            if name != "hosts":
                self.rows[name, record.round] = [
                    {key: value for key, value in row.items() if key not in MEASURED} for row in rows
                ]


def run_outcome(
    setting: Setting,
    engine: LocalEngine,
    keeper: FirstCheckpointer | None = None,
    start: Snapshot | None = None,
) -> Outcome:
    """Run a setting and return what must not differ between runs.

    Args:
        setting: method, data and partition.
        engine: runs the steps.
        keeper: writes a checkpoint; None: none is written.
        start: the snapshot to continue from; None: the run's start.
    Raises: ContractError if the run shows a broken rule; RunError if it fails otherwise.
    """
    outcome = Outcome()
    simulation = Simulation(setting, engine, outcome, checkpointer=keeper)
    try:
        simulation.run(start)
    except RunError as error:
        if isinstance(error, UnstorableError):
            raise ContractError("storable", "the server's state", str(error)) from None
        broken = error.__cause__
        if isinstance(broken, ContractError):  # the host wrapped it in a StepError, as any error of a step
            raise broken from None
        if isinstance(broken, FrozenError):
            where = str(error).partition(" failed:")[0]
            raise ContractError("frozen", where, str(broken)) from None
        if "undeclared" in str(error):
            raise ContractError("declared", "the run", str(error)) from None
        raise
    models = shared_vectors(simulation.models)
    outcome.models = {name: vector.cpu().numpy().tobytes() for name, vector in models.items()}
    return outcome


def compare_outcomes(rule: str, where: str, outcome: Outcome, expected: Outcome) -> None:
    """Compare two runs, bit for bit, in the rounds that `outcome` has, and their last models.

    Args:
        rule: key in `RULES` of the rule that a difference breaks.
        where: the part of the run that the message names.
        outcome: of the run that is checked.
        expected: of the reference run; it has at least the same rounds.
    Raises: ContractError at the first difference.
    """
    for (name, index), rows in outcome.rows.items():
        if rows != expected.rows[name, index]:
            raise ContractError(rule, where, f"round {index} has other rows in the table {name}")
    for name, vector in outcome.models.items():
        if vector != expected.models[name]:
            raise ContractError(rule, where, f"the model {name} is another")
