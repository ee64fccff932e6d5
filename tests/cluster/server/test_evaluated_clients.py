"""`evaluation.clients`: the same clients in every round, with the numbers that a run of all has for them."""

import numpy as np
import pytest
from small_recipes import THREE_CLIENTS

import rayfed_kd
from rayfed_kd.errors import RecipeError
from rayfed_kd.results.summary_table import untested_text

CLIENTS, DRAWN = 12, 5
RECIPE = {
    **THREE_CLIENTS,
    "data": {"name": "digits", "fraction": 0.1},
    "partition": {"name": "iid", "clients": CLIENTS},
    "rounds": 2,
    "checkpoint": {"every": 1},
}
METHODS = {"shared": {"name": "fedavg"}, "own": {"name": "fedper", "personal": ["F2"]}}


def rows(result, *columns):
    return [tuple(row[name] for name in columns) for row in result.table("clients").to_pylist()]


@pytest.fixture(scope="module", params=METHODS)
def both(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    recipe = {**RECIPE, "method": METHODS[request.param]}
    whole = rayfed_kd.run(recipe, {"results.folder": str(folder / "whole")}, local=True)
    few = rayfed_kd.run(
        recipe, {"results.folder": str(folder / "few"), "evaluation.clients": DRAWN}, local=True
    )
    return whole, few


def test_rows_are_those_of_the_drawn_clients_in_a_run_that_evaluates_all(both):
    whole, few = both
    columns = ("round", "model", "client", "samples", "correct")
    drawn = sorted({client for (client,) in rows(few, "client")})
    assert len(drawn) == DRAWN
    assert rows(few, *columns) == [row for row in rows(whole, *columns) if row[2] in drawn]


def test_metrics_are_means_over_the_drawn_clients(both):
    """AMP weighs clients by samples, UA all alike (the table `clients` has both)."""
    _, few = both
    for row in few.table("metrics").to_pylist():
        of_model = [
            (correct, samples)
            for index, model, correct, samples in rows(few, "round", "model", "correct", "samples")
            if (index, model) == (row["round"], row["model"])
        ]
        assert len(of_model) == DRAWN
        correct, samples = np.array(of_model).T
        assert row["ua"] == pytest.approx((correct / samples).mean())


def test_models_do_not_depend_on_who_is_evaluated(both):
    whole, few = both
    assert whole.models.keys() == few.models.keys()
    assert all(np.array_equal(whole.models[name], few.models[name]) for name in whole.models)


def test_summary_says_of_how_many(both):
    _, few = both
    counts = [few.summary[key] for key in ("clients", "drawn_clients", "tested_clients")]
    assert counts == [CLIENTS, DRAWN, DRAWN]
    said = f"{DRAWN} of {CLIENTS} clients are evaluated (evaluation.clients = {DRAWN})"
    assert untested_text(few.summary) == said


def test_resumed_run_evaluates_the_same_clients(both, tmp_path):
    _, few = both
    folder = str(tmp_path / "run")
    rayfed_kd.run(few.folder / "config.yaml", {"results.folder": folder, "rounds": 1}, local=True)
    resumed = rayfed_kd.resume(folder, ["rounds=2"], local=True)
    columns = ("round", "model", "client", "correct")
    assert rows(resumed, *columns) == rows(few, *columns)


def test_official_test_of_own_models_is_of_the_drawn_clients(tmp_path):
    data = {"name": "synthetic", "samples": 240, "test_samples": 20, "classes": 3, "shape": [1, 4, 4]}
    result = rayfed_kd.run(
        {**RECIPE, "method": METHODS["own"], "data": data},
        {"partition.test": "official", "evaluation.clients": 3, "results.folder": str(tmp_path / "run")},
        local=True,
    )
    assert {samples for _, samples in rows(result, "client", "samples")} == {20}
    assert len({client for client, _ in rows(result, "client", "samples")}) == 3


def test_more_than_there_are_is_refused():
    with pytest.raises(RecipeError, match=r"evaluation\.clients = 13: more than partition\.clients = 12"):
        rayfed_kd.prepare(RECIPE, {"evaluation.clients": 13})
