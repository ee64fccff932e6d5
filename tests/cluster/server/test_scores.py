"""Metrics that a recipe names are of the samples that their rows say, for shared and for own models."""

import math

import pytest
import torch
from runs import Rounds, run_in_process
from small_recipes import MADE_UP

import rayfed_kd
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.errors import RunError

OWN = """
from rayfed_kd import metric


@metric
def accuracy(logits, labels):
    return (logits.argmax(dim=1) == labels).double().mean()


@metric
def undefined(logits, labels):
    return 1.0 if len(labels) == 60 else float("nan")


@metric
def failing(logits, labels):
    assert len(labels) == 60, "seven"
    return 1.0
"""
RECIPE = {
    **MADE_UP,
    "method": {"name": "fedavg", "track_oca": True},
    "partition": {"name": "dirichlet", "alpha": 1.0, "clients": 5},
    "local": {"epochs": 1, "batch_size": 16, "optimizer": {"name": "sgd", "lr": 0.1}},
    "rounds": 3,
    "sampling": {"count": 2},
    "evaluation": {"samples": False, "metrics": ["own_scores:accuracy"]},
}


@pytest.fixture(autouse=True)
def own_scores(own_module):
    own_module("own_scores", OWN)


def scores(outcome):
    return {
        (row["round"], row["model"], row["test"]): (row["samples"], row["value"])
        for row in outcome.tables["scores"].to_pylist()
    }


def test_shared_models_have_a_row_for_each_set_of_test_samples():
    """Accuracy over the clients' samples together is AMP, that on the official ones the server's accuracy."""
    outcome = run_in_process(RECIPE)
    metrics = outcome.tables["metrics"].to_pylist()
    tested = sum({row["client"]: row["samples"] for row in outcome.tables["clients"].to_pylist()}.values())
    assert {row["model"] for row in metrics} == {"global", "oca"}
    assert scores(outcome) == {
        (row["round"], row["model"], test): (samples, pytest.approx(row[column], abs=1e-12))
        for row in metrics
        for test, samples, column in (("local", tested, "amp"), ("official", 40, "server_accuracy"))
    }


@pytest.mark.parametrize("method", ["fedper", "fedict"])
@pytest.mark.parametrize("test", ["local", "official"])
def test_clients_own_models_are_joined(method, test):
    """Two of five clients train a round; the others' logits are kept. FedICT's server completes models."""
    options = {"cut": "C2", "server": {"name": "dense"}} if method == "fedict" else {}
    recipe = {**RECIPE, "method": {"name": method, **options}, "model": {"name": "lenet5"}}
    recipe["data"] = {**RECIPE["data"], "shape": [1, 28, 28]}
    outcome = run_in_process(recipe, f"partition.test={test}")
    clients = outcome.tables["clients"].to_pylist()
    metrics = outcome.tables["metrics"].to_pylist()
    of_own = {key: value for key, value in scores(outcome).items() if key[2] == test}
    assert metrics
    for row in metrics:
        tested = [c["samples"] for c in clients if (c["round"], c["model"]) == (row["round"], row["model"])]
        expected = (sum(tested), pytest.approx(row["amp"], abs=1e-12))
        assert of_own[row["round"], row["model"], test] == expected


def test_logits_travel_only_where_a_metric_needs_them():
    assert not run_in_process(RECIPE, "evaluation.metrics=[]").tables["scores"].num_rows
    setting = rayfed_kd.prepare(RECIPE, ["evaluation.metrics=[]"]).setting
    results = []

    class Watched(LocalEngine):
        def evaluate(self, call):
            results.append(super().evaluate(call).result())
            return super().evaluate(call)

    Simulation(setting, Watched(Host(setting)), Rounds()).run()
    assert results
    assert all(result.logits is None for result in results)


def test_value_that_is_no_finite_number_is_told_once_and_is_none_in_the_summary():
    """60 made-up samples pass the trial; the tested ones are others."""
    setting = rayfed_kd.prepare(RECIPE, ["evaluation.metrics=[own_scores:undefined]"]).setting
    told, recorder = [], Rounds()
    Simulation(setting, LocalEngine(Host(setting)), recorder, tell=told.append).run()
    assert [line.split(":")[0] for line in told] == [
        f"metric undefined of {model} is nan in round 1" for model in ("global", "oca")
    ]
    assert all(math.isnan(row["value"]) for record in recorder for row in record.tables["scores"])
    summary = run_in_process(RECIPE, "evaluation.metrics=[own_scores:undefined]").summary
    assert summary["models"]["oca"]["last"]["local_undefined"] is None


def test_metric_that_fails_in_a_round_says_where():
    with pytest.raises(
        RunError, match=r"round 1, metric failing of \w+ on \d+ test samples failed: AssertionError: seven"
    ):
        run_in_process(RECIPE, "evaluation.metrics=[own_scores:failing]")


def test_metrics_change_no_other_result():
    ours, without = (run_in_process(RECIPE, *words) for words in ([], ["evaluation.metrics=[]"]))
    assert ours.tables["metrics"].equals(without.tables["metrics"])
    for name, vector in without.models.items():
        assert torch.equal(torch.from_numpy(ours.models[name]), torch.from_numpy(vector))
