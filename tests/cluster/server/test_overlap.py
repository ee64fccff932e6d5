"""A round is written down while the next one trains: in order, with the same numbers, and never half."""

import threading
from concurrent.futures import Future

import pytest
from runs import Rounds
from small_recipes import FOUR_CLIENTS, small_recipe

import rayfed_kd.cluster.server.simulation
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.server.client_records import ClientRecord, Records
from rayfed_kd.cluster.server.cohort import EngineCohort
from rayfed_kd.cluster.server.event_queue import EventQueue
from rayfed_kd.cluster.server.simulation import Simulation, StoppedError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.recipe.sections.safety import CheckpointRecipe

RECIPE = {
    **FOUR_CLIENTS,
    "rounds": 4,
    "sampling": {"count": 2},
    "evaluation": {"samples": False},
    "checkpoint": {"every": None},
}


class Late(LocalEngine):
    """Evaluations end only after the next round's first step has been asked for, or never."""

    def __init__(self, host, *, never_from=99):
        super().__init__(host)
        self._kept, self._never_from, self.evaluations = [], never_from, 0
        self.endless = []

    def evaluate(self, call):
        return self._later(super().evaluate(call).result())

    def submit(self, calls, summed_sizes=()):
        for future, result in self._kept:
            _end(future, result, 0.05)
        self._kept = []
        return super().submit(calls, summed_sizes)

    def _later(self, result):
        self.evaluations += 1
        future = Future()
        if self.evaluations < self._never_from:
            self._kept.append((future, result))
            _end(future, result, 1)  # the last round has none after it
        else:
            self.endless.append(future)
        return future


def _end(future, result, seconds):
    def end():
        if not future.done():
            future.set_result(result)

    threading.Timer(seconds, end).start()


class Saved:
    """A checkpointer that keeps what would be written, as it was then."""

    recipe, saved_at = CheckpointRecipe(every=None, minutes=None), 0.0

    def __init__(self):
        self.snapshots = []

    def end(self):
        pass

    def save(self, snapshot):
        self.snapshots.append((snapshot.round, {c: r.participations for c, r in snapshot.records.items()}))


def run(engine, method="pfedsd", checkpointer=None):
    setting = prepare(small_recipe(RECIPE, method)).setting
    return Simulation(setting, engine(Host(setting)), Rounds(), checkpointer=checkpointer)


def run_until(round_index, simulation):
    """Run, and be stopped when this round's first step is asked for."""
    submit = simulation.engine.submit

    def stop(calls, summed_sizes=()):
        if calls[0].facts.round == round_index:
            raise StoppedError("now")
        return submit(calls, summed_sizes)

    simulation.engine.submit = stop
    with pytest.raises(StoppedError):
        simulation.run()


def timeless(records):
    return [
        (record.round, record.tables["metrics"], record.tables["clients"], record.tables["messages"])
        for record in records
    ]


@pytest.mark.parametrize("method", ["fedavg", "pfedsd", "fedgkt"])  # shared, personal, completed models
def test_records_are_those_of_a_run_that_waits(method):
    waiting, late = run(LocalEngine, method), run(Late, method)
    waiting.run()
    late.run()  # the last round's evaluation is waited for
    assert [record.round for record in late.recorder] == [1, 2, 3, 4]
    assert timeless(late.recorder) == timeless(waiting.recorder)


def test_network_shares_time_out_while_recording_is_an_error_and_no_end_of_waiting():
    """Such an OSError is a TimeoutError; taken for that of the wait it lost all later rounds."""
    late = run(Late)
    late.recorder.record = lambda record: exec("raise TimeoutError(110, 'Connection timed out')")
    with pytest.raises(TimeoutError, match="Connection timed out"):
        late.run()


def test_stop_while_a_round_is_evaluated_goes_back_before_that_round(monkeypatch):
    monkeypatch.setattr(rayfed_kd.cluster.server.simulation, "GRACE_S", 0.1)
    whole = run(LocalEngine, checkpointer=Saved())
    whole.run()
    seen = {}
    for record in whole.recorder[:2]:
        for row in record.tables["messages"]:
            seen.setdefault(record.round, set()).add(row["client"])
    # Round 2's evaluations never end; the run is stopped in round 3.
    per_round = 1 + 4  # the shared model, and four clients' own
    stopped = run(lambda host: Late(host, never_from=per_round + 1), checkpointer=Saved())
    run_until(3, stopped)
    assert [record.round for record in stopped.recorder] == [1]
    ((round_index, participations),) = stopped.checkpointer.snapshots
    assert round_index == 1
    assert participations == dict.fromkeys(seen[1], 1)
    # Nobody is left waiting: Python ends only when its threads have.
    assert stopped.engine.endless
    assert all(future.cancelled() for future in stopped.engine.endless)


@pytest.mark.parametrize("stopped_in", [1, 3])
def test_stop_saves_the_round_before_and_nothing_before_the_first(stopped_in):
    one = run(LocalEngine, checkpointer=Saved())
    run_until(stopped_in, one)
    assert [round_index for round_index, _ in one.checkpointer.snapshots] == [2][: stopped_in - 1]


def test_two_rounds_of_records_can_be_taken_back():
    records = Records({0: ClientRecord(1)})
    records.begin(1)
    records.put(0, ClientRecord(2))
    records.begin(1)
    records.put(0, ClientRecord(3))
    records.put(1, ClientRecord(1))
    records.undo()
    assert dict(records) == {0: ClientRecord(2)}
    records.undo()
    assert dict(records) == {0: ClientRecord(1)}
    records.undo()  # nothing older is remembered
    assert dict(records) == {0: ClientRecord(1)}
    records.put(1, ClientRecord(2))
    records.undo()
    assert dict(records) == {0: ClientRecord(1)}


def test_client_that_was_never_sampled_has_an_empty_record():
    assert Records()[7] == ClientRecord(participations=0, state=None, version=0, exchange=0)


def test_round_for_which_nobody_is_available_draws_nobody(monkeypatch):
    """No number of a draw is used up: a resumed run draws the same clients later."""
    one = run(LocalEngine)
    one.begin()
    monkeypatch.setattr(EventQueue, "available", lambda queue, clients: [])
    assert EngineCohort(1, one.run_state).clients == []
    assert one.run_state.counters.draws == 0
