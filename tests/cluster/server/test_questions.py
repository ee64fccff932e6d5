"""Questions from inside a server's loop: read by row, counted as asked, waited for only when needed."""

import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from broken_methods import Keeping

from rayfed_kd.cluster.engine.calls import Held, StepFacts, StepResult
from rayfed_kd.cluster.server.client_records import ClientRecord, Records
from rayfed_kd.cluster.server.cohort import EngineCohort
from rayfed_kd.cluster.server.event_queue import EventQueue
from rayfed_kd.cluster.server.run_state import RunState
from rayfed_kd.cluster.server.traffic import Counters
from rayfed_kd.errors import RunError
from rayfed_kd.features.codecs.chain import Chain, Stage
from rayfed_kd.features.codecs.coded_wire import CodedWire
from rayfed_kd.features.codecs.plain import Cast, Zstd
from rayfed_kd.features.codecs.quantisers import Uniform
from rayfed_kd.protocol import Answers, Message
from rayfed_kd.protocol.declaration import kinds
from rayfed_kd.protocol.wire import PartSize, Wire
from rayfed_kd.recipe.sections.safety import FaultsRecipe
from rayfed_kd.timing import ClockFacts, ScheduleFacts, UpdateRule
from rayfed_kd.timing.clock import NoClock
from rayfed_kd.timing.schedule import Synchronous

ANSWERS = {k: 100.0 * k + np.arange(12, dtype=np.float32).reshape(6, 2) for k in (1, 4)}


class Asking(Keeping):
    down: ClassVar = {"ids": "ids", "weights": "weights"}
    up: ClassVar = {"logits": Answers("logits")}

    def predict(self, client, message, ctx):
        raise AssertionError("the engine answers")


class Engine:
    """An engine whose clients answer when the test says so."""

    def __init__(self, answers=None):
        self.answers = ANSWERS if answers is None else answers
        self.futures, self.calls = {}, []

    def publish(self, arrays):
        return Held(arrays)

    def submit(self, calls, summed_sizes=()):
        (call,) = calls
        self.calls.append(call)
        self.futures[call.facts.client] = Future()
        return [self.futures[call.facts.client]]

    def reply(self, client):
        answer = self.answers[client]
        sizes = {"logits": PartSize(answer.size, answer.nbytes, answer.nbytes)}
        facts = StepFacts({}, sizes, (), {}, 0, client, "here", 0.5, 0.0)
        self.futures[client].set_result(StepResult(facts, Held({"logits": answer}), Held({})))


class Both(Synchronous):
    """The two clients that have answers."""

    def sample(self, available, count, draw):
        return [1, 4]


def asked(engine, question="ids", message=None, *, drop=False, codec=None, down=None):
    faults = FaultsRecipe(bad_replies="drop" if drop else "stop")
    recipe = SimpleNamespace(faults=faults, partition=SimpleNamespace(clients=5))
    method = Asking()
    run = RunState(
        setting=SimpleNamespace(
            method=method,
            recipe=recipe,
            wires={"down": wire(method, down, "ids"), "up": wire(method, codec)},
        ),
        engine=engine,
        schedule=Both(None, ScheduleFacts(clients=5, cohort=2, seed=1)),
        rule=UpdateRule(),
        queue=EventQueue(engine, NoClock(None, ClockFacts(5, seed=1)), method.up),
        records=Records({k: ClientRecord(3, Held({"state": None}), 7, 0) for k in ANSWERS}),
        counters=Counters(),
        features=(),
    )
    engine.run = run
    cohort = EngineCohort(2, run)
    found = cohort.questions(method.predict, message or Message(), answer="logits", question=question)
    return cohort, found


def answered(answers=None, **options):
    """A cohort and its questions, whose two clients have answered."""
    cohort, questions = asked(engine := Engine(answers), **options)
    for client in ANSWERS:
        engine.reply(client)
    return cohort, questions


def wire(method, codec, kind="logits"):
    if codec is None:
        return Wire()
    way = "up" if kind == "logits" else "down"
    return CodedWire(kinds(getattr(method, way)), way, {kind: Chain((Stage("codec", codec),))})


def rows(cohort):
    return {
        (row["client"], row["direction"], row["kind"]): row["bytes"] for row in cohort.traffic.ledger.rows(2)
    }


def test_nothing_is_counted_before_a_question():
    cohort, _ = answered()
    assert rows(cohort) == {}


def test_only_rows_asked_for_and_their_ids_are_counted():
    """Three rows of two floats and three ids, then one more of each."""
    cohort, questions = answered()
    found = questions.ask(torch.tensor([5, 0, 2]))
    assert found.tolist() == [[[110, 111], [100, 101], [104, 105]], [[410, 411], [400, 401], [404, 405]]]
    counted = {
        (k, way, kind): n for k in (1, 4) for way, kind, n in (("down", "ids", 12), ("up", "logits", 24))
    }
    assert rows(cohort) == counted
    questions.ask(torch.tensor([3]))
    assert rows(cohort)[1, "up", "logits"] == 24 + 8
    assert rows(cohort)[4, "down", "ids"] == 12 + 4


def test_ids_that_clients_know_do_not_travel():
    cohort, questions = answered(question=None)
    questions.ask(torch.arange(6))
    assert rows(cohort) == {(1, "up", "logits"): 48, (4, "up", "logits"): 48}


def test_server_works_on_while_answers_are_on_their_way():
    """Started without waiting; a question waits for the last of its answers, and its wait is told."""
    cohort, questions = asked(engine := Engine())
    assert len(engine.calls) == 2
    engine.reply(4)

    def late():
        time.sleep(0.2)
        engine.reply(1)

    threading.Thread(target=late).start()
    assert questions.ask(torch.tensor([0]))[:, 0, 0].tolist() == [100, 400]
    assert cohort.traffic.answers_s >= 0.15


def test_clients_stay_as_they_are():
    """Their states are read, not replaced, and the dispatch's next step is still its first."""
    asked(engine := Engine())
    engine.reply(1)
    record = engine.run.records[1]
    assert (record.version, record.exchange) == (7, 0)
    assert all(call.observing for call in engine.calls)
    assert [call.facts.participation for call in engine.calls] == [4, 4]


def test_a_host_is_told_as_busy_once():
    cohort, questions = answered()
    questions.ask(torch.tensor([0]))
    questions.ask(torch.tensor([1]))
    assert [client for client, _ in cohort.traffic.facts] == [1, 4]


def test_message_is_counted_as_any_other():
    cohort, _ = asked(Engine(), message=Message(weights=torch.zeros(5)))
    assert rows(cohort) == {(1, "down", "weights"): 20, (4, "down", "weights"): 20}


def test_rows_are_encoded_by_question_and_counted_with_their_scales():
    """Two bits for six numbers, two bounds a row of 4 bytes each, and the shape; ends of a row are exact."""
    codec = Uniform(bits=2, by="channel")
    cohort, questions = answered(codec=codec)
    found = questions.ask(torch.tensor([5, 0, 2]))
    assert found.tolist() == [[[110, 111], [100, 101], [104, 105]], [[410, 411], [400, 401], [404, 405]]]
    assert rows(cohort)[1, "up", "logits"] == 2 + 3 * 8 + 8


def test_ids_are_encoded_and_counted_so():
    cohort, questions = answered(down=Zstd())
    assert questions.ask(torch.zeros(500, dtype=torch.int64)).shape == (2, 500, 2)
    assert rows(cohort)[1, "down", "ids"] < 100  # of 2,000 bytes


def test_each_question_is_rounded_anew():
    answers = {k: np.array([[0.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0]] * 6, np.float32) for k in (1, 4)}
    _, questions = answered(answers, codec=Uniform(bits=1, by="channel"))
    first, second = (questions.ask(torch.arange(6)) for _ in range(2))
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("drop", [False, True])
def test_answer_that_its_codec_cannot_encode_is_a_bad_one(drop):
    answers = {1: ANSWERS[1], 4: np.full((6, 2), 1e6, dtype=np.float32)}
    cohort, questions = answered(answers, drop=drop, codec=Cast(to="fp16"))
    if drop:
        assert len(questions.ask(torch.tensor([0]))) == 1
        assert cohort.traffic.dropped == 1
    else:
        with pytest.raises(RunError, match=r"client 4, predict: answer logits: codec: 2 of 2 numbers are"):
            questions.ask(torch.tensor([0]))


BROKEN = {1: ANSWERS[1], 4: np.full((6, 2), np.nan, dtype=np.float32)}


def test_answer_that_is_not_finite_names_round_client_and_step():
    _, questions = answered(BROKEN)
    with pytest.raises(
        RunError, match=r"round 2, client 4, predict: answer logits has NaN or infinite values"
    ):
        questions.ask(torch.tensor([0]))


def test_client_whose_answer_is_not_finite_is_left_out_once_and_for_good():
    cohort, questions = answered(BROKEN, drop=True)
    assert questions.ask(torch.tensor([0, 1])).shape == (1, 2, 2)
    assert questions.ask(torch.tensor([2])).shape == (1, 1, 2)
    assert cohort.traffic.dropped == 1


def test_rows_that_nobody_asks_for_may_be_anything():
    partly = {1: ANSWERS[1], 4: ANSWERS[4].copy()}
    partly[4][5] = np.inf
    _, questions = answered(partly)
    assert questions.ask(torch.tensor([0, 4])).isfinite().all()


def test_undeclared_parts_are_refused():
    cohort, questions = answered(question="idx")
    with pytest.raises(RunError, match=r"round 2, client 1, predict: part 'idx' goes down undeclared"):
        questions.ask(torch.tensor([0]))
    assert cohort.traffic.dropped == 0
