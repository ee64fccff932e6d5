"""What a round leaves for the results: its rows of the tables of rounds and hosts, and who writes them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Protocol

from rayfed_kd.cluster.engine.calls import StepFacts
from rayfed_kd.cluster.server.evaluating.evaluation import Evaluation
from rayfed_kd.cluster.server.traffic import Traffic
from rayfed_kd.data.transfers import Transfers
from rayfed_kd.protocol import ServerContext, Shown
from rayfed_kd.protocol.context_facts import Log

Rows = list[dict[str, Any]]


@dataclass
class RoundRecord:
    """The results of one round.

    Attributes:
        round: the round's number, from 1.
        tables: table -> its rows.
        shown: name -> what `Method.shown` gives to draw.
    """

    round: int
    tables: dict[str, Rows]
    shown: Mapping[str, Shown] = field(default_factory=dict)


class Recorder(Protocol):
    """Writes a run's results."""

    def record(self, record: RoundRecord) -> None:
        """Called after each round, in order."""


class RoundWriter:
    """Records rounds in their order, each as soon as its evaluation has ended, while the next one trains.

    Args:
        recorder: writes the results.
        thread: waits for evaluations; None: one of its own. A single one keeps the order.
    """

    def __init__(self, recorder: Recorder, thread: Executor | None = None) -> None:
        self._recorder, self._thread = recorder, thread or ThreadPoolExecutor(1, "round-writer")
        self._writing: Future[None] | None = None
        self._evaluation: Evaluation | None = None
        self._given_up = False

    def write(self, record: RoundRecord, evaluation: Evaluation | None, sim_s: float | None) -> None:
        """Record a round: now, or as soon as its evaluation has ended. The one before it is recorded.

        Args:
            record: the round's.
            evaluation: of the round, whose rows are added; None: there is none.
            sim_s: simulated seconds until the last reply that it used, for all rows; None: no clock.
        """

        def written() -> None:
            tables = record.tables if evaluation is None else record.tables | evaluation.rows()
            record.tables = {name: [{**row, "sim_s": sim_s} for row in rows] for name, rows in tables.items()}
            if not self._given_up:  # else the round runs again
                self._recorder.record(record)

        if evaluation is None or evaluation.done:
            written()
        else:
            self._writing, self._evaluation = self._thread.submit(written), evaluation

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the last round is recorded.

        Returns: whether it is; False after `timeout_s` seconds.
        Raises: the error of its evaluation or its record.
        """
        if self._writing is None:
            return True
        try:
            self._writing.result(timeout_s)
        except TimeoutError:
            if self._writing.done():
                raise  # of the record: a network share's is one as well
            self._given_up = True
            if self._evaluation is not None:
                self._evaluation.give_up()  # the process cannot end while the thread waits
            return False
        self._writing = None
        return True


def round_row(round_index: int, traffic: Traffic, ctx: ServerContext) -> dict[str, Any]:
    """A round's row of the table `rounds`, but for its seconds."""
    log = Log()
    # In client order, so that the sums have the same bits in whatever order the replies arrived.
    clients = [facts.logged for _, facts in sorted(traffic.facts, key=lambda entry: entry[0])]
    for logged in (*clients, traffic.logged, ctx.logged()):
        log.add_sums(logged)
    return {
        "round": round_index,
        "bytes_up": traffic.ledger.total("up"),
        "bytes_down": traffic.ledger.total("down"),
        "cohort": traffic.cohort,
        "dropped": traffic.dropped,
        "staleness": statistics.fmean(traffic.staleness) if traffic.staleness else 0.0,
        "logged": {name: value / count for name, (value, count) in log.totals().items()},
        "bad_replies": len(traffic.bad),
    }


def host_rows(round_index: int, traffic: Traffic) -> Rows:
    """A round's rows of the table `hosts`, one for each host that ran a step."""
    rows, served = list[dict[str, Any]](), dict[int, list[tuple[int, StepFacts]]]()
    for client, facts in traffic.facts:
        served.setdefault(facts.host, []).append((client, facts))
    for host in sorted(served):
        clients, steps = zip(*served[host], strict=True)
        row = {
            "round": round_index,
            "host": host,
            "node": steps[0].node,
            "rss_mb": steps[-1].rss_mb,  # after the host's last step of the round
            "busy_s": sum(step.seconds for step in steps),
            "clients": len(clients),
            "client_ids": sorted(set(clients)),
        }
        rows.append(row if steps[0].gpu is None else row | _gpu_columns(steps))
    return rows


def _gpu_columns(facts: Sequence[StepFacts]) -> dict[str, float | int | None]:
    """A round's use of a host's GPU, of its steps in the order of their replies."""
    uses = [(step.seconds, step.gpu) for step in facts if step.gpu is not None]
    copied = reduce(Transfers.plus, (use.transfers for _, use in uses))
    # A step that took longer says more about the round.
    busy = [(seconds, use.busy) for seconds, use in uses if use.busy is not None]
    busy_s = sum(seconds for seconds, _ in busy)
    return {
        "gpu_mb": uses[-1][1].memory_mb,
        "gpu_peak_mb": max((use.peak_mb for _, use in uses if use.peak_mb is not None), default=None),
        "gpu_busy": sum(seconds * share for seconds, share in busy) / busy_s if busy_s else None,
        **{f"gpu_{name}": count for name, count in copied._asdict().items()},
    }
