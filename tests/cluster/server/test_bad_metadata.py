"""Numbers beside a reply's parts: NaN and infinity are bad replies, a missing one is told by its call."""

import numpy as np
import pytest
from runs import run_in_process
from small_recipes import THREE_CLIENTS

from rayfed_kd.errors import RunError

RECIPE = {**THREE_CLIENTS, "rounds": 3, "evaluation": {"samples": False}}
OWN = """
from algorithms.fedavg import FedAvg
from rayfed_kd.protocol import Replies, Reply


class Given(FedAvg):
    def client_update(self, client, message, ctx):
        state, reply = super().client_update(client, message, ctx)
        if ctx.client == 1 and ctx.round == 2:
            return state, Reply(student=reply["student"], NUMBERS)
        return state, reply
"""


ALONE = f"""{OWN}
    def run_round(self, server, cohort, ctx):
        message = self.dispatch(server, ctx)
        waits = [cohort.submit(client, self.client_update, message) for client in cohort.clients]
        replies = [reply for wait in waits if (reply := wait()) is not None]
        return self.absorb(server, Replies(replies), ctx)
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))

    def run_with(numbers, *overrides, code=OWN):
        name = f"own_metadata_{tmp_path.name}_{code == ALONE}"
        (tmp_path / f"{name}.py").write_text(code.replace("NUMBERS", numbers))
        return run_in_process({**RECIPE, "method": {"name": f"{name}:Given"}}, *overrides)

    return run_with


NOT_FINITE = ["float('nan')", "float('inf')", "-float('inf')", "10**400"]


@pytest.mark.parametrize("number", NOT_FINITE)
def test_number_that_is_not_finite_stops_the_run(run, number):
    message = r"round 2, client 1, client_update: reply number samples has NaN or infinite values"
    with pytest.raises(RunError, match=message):
        run(f"samples={number}")


@pytest.mark.parametrize("number", NOT_FINITE)
def test_number_that_is_not_finite_is_dropped_and_counted(run, number):
    outcome = run(f"samples={number}", "faults.bad_replies=drop")
    assert outcome.tables["rounds"]["dropped"].to_pylist() == [0, 1, 0]


def test_bad_reply_to_one_client_alone_is_left_out_and_counted(run):
    """As of a broadcast: the method aggregates the same replies."""
    together, alone = (run("samples=float('nan')", "faults.bad_replies=drop", code=c) for c in (OWN, ALONE))
    assert alone.tables["rounds"]["dropped"].to_pylist() == [0, 1, 0]
    assert np.array_equal(alone.models["aca"], together.models["aca"])


def test_bad_reply_to_one_client_alone_stops_the_run_unless_they_are_dropped(run):
    with pytest.raises(RunError, match="round 2, client 1, client_update: reply number samples"):
        run("samples=float('nan')", code=ALONE)


def test_missing_number_is_told_with_round_client_and_step(run):
    message = r"round 2, client 1, client_update: the reply has no 'samples', .*; there are seconds, student"
    with pytest.raises(RunError, match=message):
        run("seconds=1.0")
