"""The server's loop: schedule, round, evaluation, record. Plain synchronous Python over any engine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from cluster.checkpoints import Checkpointer, Snapshot, remembered
from cluster.cohort import ClientRecord, EngineCohort, Traffic
from cluster.engine import Engine
from cluster.evaluation import Evaluator
from cluster.poisoning import Poisoning
from cluster.schedules import make_schedule
from rayfed_kd.contexts import ServerContext
from rayfed_kd.errors import RunError
from rayfed_kd.protocol import Evaluable, Shown
from rayfed_kd.setting import Setting

Rows = list[dict[str, Any]]


class StoppedError(RunError):
    """The user asked the run to end."""


@dataclass
class RoundRecord:
    """What one round leaves.

    Attributes:
        round: from 1.
        tables: table -> rows.
        shown: what the method gives to draw, by name.
    """

    round: int
    tables: dict[str, Rows]
    shown: Mapping[str, Shown] = field(default_factory=dict)


class Recorder(Protocol):
    """Who writes a run's results down."""

    def record(self, record: RoundRecord) -> None:
        """Called after each round, in order."""
        ...

    def close(self, status: str) -> dict[str, Any]:
        """Writes what is left and gives the summary. `status`: finished, interrupted or failed."""
        ...


@dataclass
class Simulation:
    """One run of a setting on an engine.

    Attributes:
        setting: method, data, partition.
        engine: who runs clients' steps.
        recorder: who writes results down.
        device: what the server computes on.
        checkpointer: who writes the run's state down; None: nobody.
        models: after `run`, the evaluated models of the last round.
    """

    setting: Setting
    engine: Engine
    recorder: Recorder
    device: torch.device | str = "cpu"
    checkpointer: Checkpointer | None = None
    models: Mapping[str, Evaluable] = field(default_factory=dict)
    _stopping: bool = False

    def __post_init__(self) -> None:
        self._workshop = self.setting.workshop(self.device)
        self._data = self.setting.device_data(self.device)
        self._evaluator = Evaluator(self.setting, self.engine)
        self._schedule = make_schedule(self.setting.recipe)
        self._poisoning = None
        if self.setting.recipe.attack is not None:
            self._poisoning = Poisoning(self.setting.recipe, self.setting.method, self.engine.publish)
        self._records: dict[int, ClientRecord] = {}
        self._started = time.perf_counter()

    def stop(self) -> None:
        """Asks the run to end before its next round."""
        self._stopping = True

    def run(self, start: Snapshot | None = None) -> None:
        """All rounds, or those after a snapshot. A round that is stopped half way is abandoned.

        Raises: StoppedError if `stop` was called; RunError if the run cannot go on.
        """
        if start is None:
            server, done = self.setting.method.init_server(self._context(0)), 0
            self._workshop.take_back()
        else:
            server, done, self._records = start.server, start.round, dict(start.records)
            self._started -= start.wall_s
        for round_index in range(done + 1, self.setting.recipe.rounds + 1):
            before = dict(remembered(self._records, self._schedule.cohort(round_index)))
            try:
                if self._stopping:
                    raise StoppedError(f"stopped after round {round_index - 1}")
                server = self._round(round_index, server)
            except (StoppedError, KeyboardInterrupt):
                self._put_back(before)
                self._save(round_index - 1, server)
                raise
            last = round_index == self.setting.recipe.rounds
            if self.checkpointer is not None and (last or self.checkpointer.due(round_index)):
                self._save(round_index, server)

    def _put_back(self, before: Mapping[int, Any]) -> None:
        for client, record in before.items():
            if record is None:
                self._records.pop(client, None)
            else:
                self._records[client] = record

    def _save(self, round_index: int, server: Any) -> None:
        if self.checkpointer is not None and round_index > 0:
            wall_s = time.perf_counter() - self._started
            self.checkpointer.save(Snapshot(round_index, server, self._records, wall_s))

    def _round(self, round_index: int, server: Any) -> Any:
        method, started = self.setting.method, time.perf_counter()
        ctx = self._context(round_index)
        cohort = self._cohort(round_index)
        server = method.run_round(server, cohort, ctx)
        self._workshop.take_back()
        trained = time.perf_counter()
        record = RoundRecord(round_index, {"messages": cohort.traffic.ledger.rows(round_index)})
        if self._due(round_index):
            self.models = method.evaluated(server)
            metrics, clients = self._evaluator.evaluate(round_index, self.models, self._records)
            record.tables |= {"metrics": metrics, "clients": clients}
            if self.setting.recipe.evaluation.samples:
                observers = self._cohort(round_index, cohort)
                record.shown = method.shown(server, observers, ctx)
                self._workshop.take_back()
        seconds = {
            "wall_s": time.perf_counter() - self._started,
            "dispatch_s": cohort.traffic.dispatch_s,
            "client_s": cohort.traffic.client_s,
            "server_s": trained - started - cohort.traffic.client_s - cohort.traffic.dispatch_s,
            "evaluate_s": time.perf_counter() - trained,
        }
        record.tables["rounds"] = [_round_row(round_index, cohort, ctx) | seconds]
        record.tables["hosts"] = _host_rows(round_index, cohort.traffic)
        self.recorder.record(record)
        return server

    def _cohort(self, round_index: int, of: EngineCohort | None = None) -> EngineCohort:
        clients = self._schedule.cohort(round_index) if of is None else of.clients
        return EngineCohort(
            clients,
            round_index,
            self.setting.method,
            self.engine,
            self._records,
            observing=of is not None,
            drop=self.setting.recipe.faults.non_finite == "drop",
            poisoning=None if of is not None else self._poisoning,
        )

    def _context(self, round_index: int) -> ServerContext:
        facts = self.setting.server_facts(round_index)
        return ServerContext(self._workshop, self._data, facts, self.setting.recipe.seed)

    def _due(self, round_index: int) -> bool:
        recipe = self.setting.recipe
        return round_index % recipe.evaluation.every == 0 or round_index == recipe.rounds


def _round_row(round_index: int, cohort: EngineCohort, ctx: ServerContext) -> dict[str, Any]:
    sums: dict[str, list[float]] = {}
    clients = [facts.logged for _, facts in sorted(cohort.traffic.facts, key=lambda entry: entry[0])]
    for logged in (*clients, ctx.logged()):
        for name, (value, count) in logged.items():
            entry = sums.setdefault(name, [0.0, 0])
            entry[0] += value
            entry[1] += count
    return {
        "round": round_index,
        "sim_s": None,
        "bytes_up": cohort.traffic.ledger.total("up"),
        "bytes_down": cohort.traffic.ledger.total("down"),
        "cohort": len(cohort.clients),
        "dropped": cohort.traffic.dropped,
        "staleness": 0.0,
        "losses": {name: value / count for name, (value, count) in sums.items()},
    }


def _host_rows(round_index: int, traffic: Traffic) -> Rows:
    rows: dict[int, dict[str, Any]] = {}
    for _, facts in traffic.facts:
        first = {"round": round_index, "host": facts.host, "node": facts.node, "busy_s": 0.0, "clients": 0}
        row = rows.setdefault(facts.host, first)
        row["busy_s"] += facts.seconds
        row["clients"] += 1
        row["rss_mb"], row["gpu_mb"] = facts.rss_mb, facts.gpu_mb
    return [rows[host] for host in sorted(rows)]


def run_recorded(simulation: Simulation, recorder: Recorder, start: Snapshot | None = None) -> dict[str, Any]:
    """Runs a simulation, from a snapshot if there is one, and closes its recorder whatever happens.

    Returns: the summary.
    """
    status = "failed"
    try:
        simulation.run(start)
        status = "finished"
    except (StoppedError, KeyboardInterrupt):
        status = "interrupted"
    finally:
        summary = recorder.close(status)
    return summary
