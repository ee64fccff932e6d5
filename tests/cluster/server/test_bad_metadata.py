"""Numbers beside a reply's parts: NaN and infinity are bad replies, a missing one is told by its call."""

import pytest
from runs import run_in_process
from small_recipes import THREE_CLIENTS

RECIPE = {**THREE_CLIENTS, "rounds": 3, "evaluation": {"samples": False}}
OWN = """
from rayfed_kd.algorithms.fedavg import FedAvg
from rayfed_kd.protocol import Replies, Reply


class Given(FedAvg):
    def client_update(self, client, message, ctx):
        state, reply = super().client_update(client, message, ctx)
        if ctx.client == 1 and ctx.round == 2:
            return state, Reply(student=reply["student"], NUMBERS)
        return state, reply
"""


@pytest.fixture
def run(tmp_path, own_module):

    def run_with(numbers, *overrides):
        name = f"own_metadata_{tmp_path.name}"
        own_module(name, OWN.replace("NUMBERS", numbers))
        return run_in_process({**RECIPE, "method": {"name": f"{name}:Given"}}, *overrides)

    return run_with


NOT_FINITE = ["float('nan')", "float('inf')", "-float('inf')", "10**400"]


@pytest.mark.parametrize("number", NOT_FINITE)
def test_number_that_is_not_finite_is_dropped_and_counted(run, number):
    outcome = run(f"samples={number}", "faults.bad_replies=drop")
    assert outcome.tables["rounds"]["dropped"].to_pylist() == [0, 1, 0]
