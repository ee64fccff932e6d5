"""How a run ends whose numbers are none: what is told, in its lines, in its summary and in its tables."""

import json

import pytest
from small_recipes import THREE_CLIENTS

import rayfed_kd
from rayfed_kd.errors import RunError
from rayfed_kd.results.console import round_line
from rayfed_kd.results.summary_table import summary_notes

OWN = """
from rayfed_kd.algorithms.fedavg import FedAvg
from rayfed_kd.algorithms.standalone import StandAlone as Standalone
from rayfed_kd import metric


class BadReply(FedAvg):
    def client_update(self, client, message, ctx):
        state, reply = super().client_update(client, message, ctx)
        if ctx.client == 1 and ctx.round > 1:
            reply["student"][0] = float("nan")
        return state, reply


class Broken(FedAvg):
    def absorb(self, server, replies, ctx):
        server = super().absorb(server, replies, ctx)
        if ctx.round == 2:
            server.weights[0] = float("nan")
        return server


class OneBroken(Standalone):
    def personal(self, client, ctx):
        model = super().personal(client, ctx)
        return model * float("nan") if ctx.client == 2 else model


@metric
def undefined(logits, labels):
    return float("nan") if len(labels) < 100 else 0.5
"""


@pytest.fixture
def run(tmp_path, own_module):
    """Runs a recipe on methods of this test's own, and gives its result and its lines."""
    name = f"own_ends_{tmp_path.name}"
    own_module(name, OWN)

    def ran(method, **changes):
        lines = []
        recipe = {**THREE_CLIENTS, "method": {"name": f"{name}:{method}"}, **changes}
        recipe["results"] = {"folder": str(tmp_path / method)}
        recipe = json.loads(json.dumps(recipe).replace("OWN:", f"{name}:"))
        result = rayfed_kd.run(
            recipe, local=True, tell=lines.append, on_event=lambda event: lines.append(round_line(event))
        )
        return result, lines

    return ran


def test_bad_replies_that_are_left_out_are_told_in_the_line_and_at_the_end(run):
    result, lines = run("BadReply", rounds=3, faults={"bad_replies": "drop"})
    told = [line for line in lines if "bad_replies: drop leaves out" in line]
    assert len(told) == 1
    assert "round 2, client 1, client_update: reply part student has NaN" in told[0]
    assert ["1 bad reply left out" in line for line in lines if line.startswith("round")] == [
        False,
        True,
        True,
    ]
    assert result.table("rounds")["bad_replies"].to_pylist() == [0, 1, 1]
    assert (result.summary["bad_replies"], result.summary["status"]) == (2, "finished")
    assert "2 bad replies left out (faults.bad_replies: drop)" in summary_notes(result.summary)


def test_run_whose_model_is_nan_does_not_end_as_finished(run):
    """Every client's test samples get NaN: none counts as right, not as of the first class."""
    result, lines = run("Broken")
    assert result.summary["status"] == "finished, but diverged"
    assert result.table("metrics").select(["amp", "not_finite"]).to_pylist()[-1] == {
        "amp": 0,
        "not_finite": 3,
    }
    assert "global gives NaN or infinite values for 3 clients in round 2" in result.summary["diverged"]
    assert "global NaN or infinite for 3 clients" in lines[-1]
    assert json.loads((result.folder / "summary.json").read_text())["diverged"] == result.summary["diverged"]
    # It is over all the same: resuming it makes no round more.
    assert rayfed_kd.resume(result.folder, local=True).summary["status"] == "finished, but diverged"


def test_one_clients_own_model_that_is_nan_is_counted(run):
    result, _ = run("OneBroken")
    assert result.table("metrics")["not_finite"].to_pylist() == [1, 1]
    assert result.summary["diverged"] == ["personal gives NaN or infinite values for 1 client in round 2"]
    accuracies = {row["client"]: row["accuracy"] for row in result.table("clients").to_pylist()}
    assert accuracies[2] == 0
    assert min(accuracies[0], accuracies[1]) > 0


def test_metric_without_a_value_is_told_in_the_line_and_at_the_end(run):
    """Found undefined on the run's few test samples only, not on the samples by which metrics are tried."""
    result, lines = run("BadReply", rounds=1, evaluation={"metrics": ["OWN:undefined"]})
    assert "local_undefined undefined" in lines[-1]
    assert result.summary["models"]["global"]["undefined"] == {"local_undefined": 1}
    assert "local_undefined of global has no finite value in 1 evaluation of 1" in str(result)


EVALUATED = """
from torch import nn
from rayfed_kd import model_builder


class Refuses(nn.Sequential):
    def forward(self, images):
        if not self.training and len(images) > 30:
            raise ValueError(f"{len(images)} images at a time")
        return super().forward(images)


@model_builder
def net(shape, classes):
    return Refuses(nn.Flatten(), nn.Linear(64, classes))
"""


def test_model_that_fails_as_it_is_evaluated_is_told_with_its_place_and_the_way_on(tmp_path, own_module):
    name = f"own_evaluated_{tmp_path.name}"
    own_module(name, EVALUATED)
    changes = {"model": {"name": f"{name}:net"}, "results": {"folder": str(tmp_path / "run")}}
    told = r"(?s)evaluation of global failed:.*ValueError: \d+ images at a time.*resume"
    with pytest.raises(RunError, match=told):
        rayfed_kd.run({**THREE_CLIENTS, **changes}, local=True)


def test_what_a_listener_raises_is_not_taken_for_a_full_disk(tmp_path):
    with pytest.raises(FileNotFoundError, match="not-there"):
        rayfed_kd.run(
            THREE_CLIENTS,
            {"results.folder": tmp_path / "run"},
            local=True,
            on_event=lambda event: (tmp_path / "not-there/x.csv").write_text(""),
        )
