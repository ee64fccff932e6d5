"""The server's loop over rounds: train, evaluate, record. Plain synchronous Python over any engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from rayfed_kd.cluster.engine.device import placed_data
from rayfed_kd.cluster.engine.interface import Engine
from rayfed_kd.cluster.server.checkpoints import Checkpointer
from rayfed_kd.cluster.server.client_records import Records
from rayfed_kd.cluster.server.cohort import EngineCohort
from rayfed_kd.cluster.server.evaluating.evaluation import Evaluation, Evaluator
from rayfed_kd.cluster.server.event_queue import EventQueue
from rayfed_kd.cluster.server.features.round_features import features_of
from rayfed_kd.cluster.server.round_tables import Recorder, RoundRecord, RoundWriter, host_rows, round_row
from rayfed_kd.cluster.server.run_state import RunState, Snapshot
from rayfed_kd.cluster.server.sender import ObservedClients
from rayfed_kd.cluster.server.traffic import Counters
from rayfed_kd.errors import MisuseError, RunError, blaming_method, kind_of
from rayfed_kd.protocol import Evaluable, ServerContext
from rayfed_kd.protocol.evaluated import check_evaluated, check_shown
from rayfed_kd.protocol.state_packing import check_storable, copied
from rayfed_kd.recipe.seeds import global_stream
from rayfed_kd.setting.setting import Setting

GRACE_S = 5.0  # how long a stopped run waits for its last evaluation


class StoppedError(RunError):
    """The user stopped the run."""


@dataclass
class Simulation:
    """One run of a setting on an engine.

    Attributes:
        setting: method, data, partition.
        engine: runs the clients' steps.
        recorder: writes the results.
        device: where the server computes.
        checkpointer: writes checkpoints; None: there are none.
        models: after `run`, the models of the last evaluated round.
        tell: called with each line that the user should read.
        why_ended: why the run ends before its last round, as the recorder knows; empty: it goes on.
        gpu_share: the part of the device's memory that the server may take.
        evaluator: evaluates the models of the rounds that are due.
        writer: records the rounds.
        run_state: after `begin`, the state that all rounds share.
    """

    setting: Setting
    engine: Engine
    recorder: Recorder
    device: torch.device | str = "cpu"
    checkpointer: Checkpointer | None = None
    models: Mapping[str, Evaluable] = field(default_factory=dict)
    tell: Callable[[str], None] = lambda line: None
    why_ended: Callable[[], str] = lambda: ""
    gpu_share: float = 1.0
    run_state: RunState = field(init=False)
    _stopping: bool = False
    _asked_rounds: bool = False
    _told_bad: bool = False

    def __post_init__(self) -> None:
        self._module_pool = self.setting.module_pool(self.device)
        self._data = placed_data(self.setting, torch.device(self.device), self.gpu_share, "server")
        self._facts = self.setting.server_facts(0)
        self.evaluator = Evaluator(self.setting, self.engine, self.tell)
        self._started = time.perf_counter()
        self.writer = RoundWriter(self.recorder)

    def stop(self) -> None:
        """Ask the run to end before its next round. May be called from another thread."""
        self._stopping = True

    def run(self, start: Snapshot | None = None) -> None:
        """Run all rounds, or those after a snapshot. A round that is interrupted is abandoned.

        Args:
            start: the snapshot to continue from; None: the run's start.
        Raises: StoppedError if `stop` was called; RunError if the run cannot go on.
        """
        start = self.begin(start)
        ended = self._ends_after(start.round)
        if ended or start.round == self.setting.recipe.rounds:  # killed after its last round, before its end
            self.models = self._evaluated(start.round, start.server)
        # The run before its last complete round, and after it. One assignment a round, as Ctrl-C in a run
        # without Ray may come between any two.
        snapshots = start, start
        try:
            for round_index in () if ended else range(start.round + 1, self.setting.recipe.rounds + 1):
                self.run_state.records.begin(round_index)
                if self._stopping:
                    raise StoppedError(f"stopped after round {round_index - 1}")
                server = self.round(round_index, snapshots[1].server)
                snapshots = snapshots[1], self.snapshot(round_index, server)
                ended = self._ends_after(round_index)
                last = ended or round_index == self.setting.recipe.rounds
                # Recorded before saved: a resumed run never repeats a round that a checkpoint contains.
                if last or is_due(self.checkpointer, round_index):
                    self.writer.wait()
                    self._save(snapshots[1])
                if ended:
                    break
            if self.checkpointer is not None:
                self.checkpointer.end()
        except (StoppedError, KeyboardInterrupt):
            self._end_early(*snapshots)
            raise
        except Exception:
            # The one to report, whatever becomes of the round before: that still gets its rows, if it can,
            # before the engine is told to stop, and its checkpoint.
            with suppress(Exception):
                self.writer.wait(GRACE_S)
            with suppress(Exception):
                self._end_early(*snapshots)
            raise

    def _ends_after(self, round_index: int) -> bool:
        """Whether the run ends after this round: by its evaluation, or as its listener has asked."""
        if self.setting.recipe.stop is not None:
            self.writer.wait()
        return bool(self.why_ended()) and self._tests(round_index)

    def _end_early(self, before: Snapshot, after: Snapshot) -> None:
        """Save the newest round that is complete and recorded.

        Args:
            before, after: the run before and after its last complete round; of a later round, which may be
                under way, the records' changes are undone.
        """
        self.engine.cancel()  # else a host in this process would go on training while the next line waits
        records = self.run_state.records
        if records.round > after.round:
            records.undo()
        try:
            settled = self.writer.wait(GRACE_S)
        except Exception:  # of its evaluation or its record: the error that ends this run
            settled = False
        if not settled:  # the last complete round has no rows yet, so it must run again
            records.undo()
            after = before
        self._save(after)

    def begin(self, start: Snapshot | None = None) -> Snapshot:
        """Prepare `run_state` from a snapshot, whose unanswered dispatches are sent again, or afresh.

        Returns: the snapshot that the first round starts from.
        Raises: UnstorableError if the method's server state cannot be stored.
        """
        setting = self.setting
        if start is None:
            ctx = self._context(0)
            with self._blaming(0), global_stream(setting.recipe.seed, "server", 0, device=self.device):
                server = setting.method.init_server(ctx)
            self._module_pool.take_back()
            self._asked_rounds = ctx.asked_rounds
            self._check_storable(server, "before the first round")
            start = Snapshot(0, server, {}, 0.0)
        self._asked_rounds |= start.asked_rounds
        # Real seconds go on from the checkpoint's: `wall_s` does not count the time between two processes.
        self._started -= start.wall_s
        clock = None if setting.clock.measured else setting.clock
        rule = setting.schedule.rule
        queue = EventQueue(self.engine, clock, setting.method.up, start.now)
        for dispatch in start.under_way:
            # One by one: a schedule that leaves steps under way between rounds forms no groups.
            queue.start(dispatch)
        self.run_state = RunState(
            setting=setting,
            engine=self.engine,
            schedule=setting.schedule,
            rule=rule and replace(rule, borders=setting.borders),
            queue=queue,
            records=Records(start.records),
            counters=Counters(start.draws, start.dispatches),
            features=features_of(setting, self.engine, self._module_pool, start.privacy),
        )
        return start

    def _check_storable(self, server: Any, when: str) -> None:
        """Raise UnstorableError if a checkpoint cannot hold this state, long before one is due."""
        check_storable(server, f"the server of {type(self.setting.method).__name__}, {when}: the state")

    def snapshot(self, round_index: int, server: Any) -> Snapshot:
        """The run's state after round `round_index`; its records are the live mapping, not a copy."""
        run = self.run_state
        return Snapshot(
            round=round_index,
            server=server,
            records=run.records,
            wall_s=time.perf_counter() - self._started,
            now=run.queue.now,
            draws=run.counters.draws,
            dispatches=run.counters.dispatches,
            under_way=run.queue.under_way,
            privacy=next(filter(None, (feature.stored for feature in run.features)), None),
            asked_rounds=self._asked_rounds,
        )

    def _save(self, snapshot: Snapshot) -> None:
        if self.checkpointer is not None and snapshot.round > 0:
            self.checkpointer.save(snapshot)

    def round(self, round_index: int, server: Any) -> Any:
        """Run one round, after `begin`. Its record is written when its evaluation ends, perhaps later.

        Args:
            round_index: the round's number, from 1.
            server: the server's state before the round.
        Returns: the server's new state.
        """
        started, queue = time.perf_counter(), self.run_state.queue
        ctx, waited_s = self._context(round_index), queue.waited_s
        cohort = EngineCohort(round_index, self.run_state)
        server, traffic = self._new_state(server, cohort, ctx), cohort.traffic
        trained_at, client_s = time.perf_counter(), queue.waited_s - waited_s + traffic.answers_s
        record = RoundRecord(round_index, {"messages": traffic.ledger.rows(round_index)})
        self.writer.wait()  # the round before: evaluations must not overlap, and records keep their order
        evaluation = self._evaluation_of(server, cohort, ctx, record) if self._tests(round_index) else None
        seconds = {
            "wall_s": time.perf_counter() - self._started,
            "dispatch_s": traffic.dispatch_s,
            "client_s": client_s,
            # The rest: neither waiting for clients' results nor publishing messages.
            "server_s": trained_at - started - client_s - traffic.dispatch_s,
            "evaluate_s": time.perf_counter() - trained_at,
        }
        record.tables["rounds"] = [round_row(round_index, traffic, ctx) | seconds]
        for feature in self.run_state.features:
            record.tables |= {name: [row] for name, row in feature.end_round(round_index).items()}
        record.tables["hosts"] = host_rows(round_index, traffic)
        self.writer.write(record, evaluation, queue.now if queue.simulated else None)
        return server

    def _new_state(self, server: Any, cohort: EngineCohort, ctx: ServerContext) -> Any:
        """The method's round: the server's new state, which a checkpoint can hold."""
        method, seed = self.setting.method, self.setting.recipe.seed
        # The stream is for modules that draw from torch's global generators, as dropout does.
        with self._blaming(ctx.round), global_stream(seed, "server", ctx.round, device=self.device):
            # A copy, so that a round which changes its state in place has not changed the one before it.
            before, server = server, copied(server)
            if cohort.clients or not self.setting.recipe.sampling.poisson:
                server = method.run_round(server, cohort, ctx)
            else:
                for feature in self.run_state.features:
                    server = feature.after_nobody(method, server, ctx)
            _check_new(before, server)
        self._check_storable(server, f"round {ctx.round}")
        cohort.end_round()
        self._module_pool.take_back()
        self._asked_rounds |= ctx.asked_rounds
        if cohort.traffic.bad and not self._told_bad:
            self._told_bad = True  # of all others there are numbers in the rounds' lines
            self.tell(f"faults.bad_replies: drop leaves out: {cohort.traffic.bad[0]}")
        return server

    def _evaluation_of(
        self, server: Any, cohort: EngineCohort, ctx: ServerContext, record: RoundRecord
    ) -> Evaluation:
        """Start a round's evaluation, and note in its record what the method shows."""
        server = copied(server)  # what a method changes of it to evaluate or to show it is no round's work
        self.models = self._evaluated(ctx.round, server)
        evaluation = self.evaluator.start(ctx.round, self.models, self.run_state.records)
        if self.setting.recipe.evaluation.samples and cohort.clients:
            observed = ObservedClients(cohort.clients, ctx.round, self.run_state)
            with self._blaming(ctx.round):
                record.shown = self.setting.method.shown(server, observed, ctx)
                check_shown(record.shown)
            self._module_pool.take_back()
        return evaluation

    def _evaluated(self, round_index: int, server: Any) -> Mapping[str, Evaluable]:
        """What the method wants evaluated after a round."""
        with self._blaming(round_index):
            models = self.setting.method.evaluated(server)
            check_evaluated(models, self._module_pool.lengths, self.setting.method)
            return models

    def _blaming(self, round_index: int) -> AbstractContextManager[None]:
        """Within, an error is told as one of the method's server code in this round."""
        when = f"round {round_index}" if round_index else "before round 1"
        return blaming_method(f"{when}, server of {self.setting.recipe.method.name}")

    def _context(self, round_index: int) -> ServerContext:
        # Sizes and models of perhaps a million clients are the same in all rounds.
        recipe = self.setting.recipe
        local = recipe.local.in_round(round_index, recipe.rounds)
        facts = replace(self._facts, round=round_index, local=local)
        return ServerContext(self._module_pool, self._data, facts, recipe.seed)

    def _tests(self, round_index: int) -> bool:
        """Whether models are evaluated after this round."""
        recipe = self.setting.recipe
        return round_index % recipe.evaluation.every == 0 or round_index == recipe.rounds


def is_due(checkpointer: Checkpointer | None, round_index: int) -> bool:
    """Whether a checkpoint is due after this round, by `checkpoint.every` or `checkpoint.minutes`."""
    if checkpointer is None:
        return False
    recipe, since_s = checkpointer.recipe, time.monotonic() - checkpointer.saved_at
    by_rounds = recipe.every is not None and round_index % recipe.every == 0
    return by_rounds or (recipe.minutes is not None and since_s >= 60 * recipe.minutes)


def _check_new(before: Any, after: Any) -> None:
    """Refuse what a round returned in the place of a server's state: None, or a tuple with more than it.

    Raises: MisuseError
    """
    if (after is None and before is not None) or (type(after) is tuple and type(before) is not tuple):
        raise MisuseError(
            f"it returned {kind_of(after)} as the server's new state, which was {kind_of(before)} before; "
            "expected the state alone, as absorb or run_round returns it"
        )
