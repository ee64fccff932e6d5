"""One result everywhere: torch.equal, not allclose."""

from collections import Counter
from dataclasses import replace
from itertools import chain

import pytest
import torch
from runs import run_in_process
from small_recipes import FOUR_CLIENTS, assert_same_run, small_recipe

import rayfed_kd
from rayfed_kd.algorithms import METHODS
from rayfed_kd.cluster.engine.calls import Held, LiveState
from rayfed_kd.cluster.engine.local import LocalEngine, _done
from rayfed_kd.cluster.ray_backend.placement import plan_hosts
from rayfed_kd.cluster.ray_backend.resources import Node
from rayfed_kd.comparison.checking import method_of
from rayfed_kd.recipe.loading import load_recipe

RECIPE = {
    **FOUR_CLIENTS,
    "rounds": 3,
    "sampling": {"fraction": 0.75},
    # A float64 sum: its bits tell in which order the samples were.
    "evaluation": {"metrics": ["negative_log_likelihood"]},
}
# One of each kind: one exchange or several, questions in the server's loop, layers that stay at home.
EVERYWHERE = {
    "fedavg": {"track_oca": True},
    "fedkf": {},
    "dafkd": {"protocol": "local"},
    "kdia": {},
    "fedd2s": {},
    "fedgems": {},
}
HETEROGENEOUS = (
    "fedmd",
    "cronus",
    "dsfl",
    "fedgem",
    "fedgems",
    "fd",
    "fedgh",
    "fedkd",
    "fedktl",
    "fedproto",
    "fedtgp",
)
HETEROGENEOUS += ("fml", "lg_fedavg", "standalone")
MODELS = {
    "fedavg": {"global", "oca"},
    "fedkf": {"global", "oca"},
    "kdia": {"student", "teacher"},
    "fedd2s": set(),
    "fedgems": {"server"},
}


def recipe_of(method, **options):
    recipe = small_recipe(RECIPE, method, **options)
    if method in HETEROGENEOUS:
        # Both have 84 features.
        recipe["client_models"] = {"models": [{"name": "lenet5"}, {"name": "mlp", "hidden": 84}]}
    return recipe


def run(method, folder, *overrides, local=False, **options):
    return rayfed_kd.run(recipe_of(method, **options), [f"results.folder={folder}", *overrides], local=local)


@pytest.mark.parametrize("method", EVERYWHERE)
def test_any_placement_gives_the_local_engines_bits(method, hosts):
    recipe = recipe_of(method, **EVERYWHERE[method])
    expected = run_in_process(recipe)
    assert set(expected.models) == MODELS.get(method, {"global"})
    assert_known_to_studies(expected, recipe)
    assert len(expected.tables["scores"]) == len(expected.tables["metrics"]) > 0
    for clients_per_actor in (4, 2, 1):
        result = hosts.run(recipe, f"placement.clients_per_actor={clients_per_actor}")
        assert_same_run(result, expected)
        # A pinned client that took part shows as a host of its own.
        assert len(set(result.tables["hosts"]["host"].to_pylist())) <= -(-4 // clients_per_actor)


def test_rows_of_hosts_name_each_client_of_a_round_once(hosts):
    recipe = {**recipe_of("fedavg"), "sampling": {"fraction": 1.0}}
    runs = run_in_process(recipe), hosts.run(recipe, "placement.clients_per_actor=2")
    alone, shared = (run.tables["hosts"].to_pylist() for run in runs)
    assert [(row["host"], row["client_ids"]) for row in alone] == [(0, [0, 1, 2, 3])] * 3
    assert {row["host"] for row in shared} == {0, 1}
    for index in (1, 2, 3):
        ids = [row["client_ids"] for row in shared if row["round"] == index]
        assert sorted(chain(*ids)) == [0, 1, 2, 3]


def assert_known_to_studies(result, recipe):
    """A study's claims are checked against these models before it runs; CCVR's inside has no oca here."""
    found = set(result.tables["metrics"]["model"].to_pylist())
    known = set(method_of(load_recipe(recipe)).evaluates)
    assert found == known - ({"oca", "oca_ccvr"} if recipe["method"]["name"] == "ccvr" else set())


@pytest.mark.parametrize("method", [name for name in METHODS if name not in EVERYWHERE])
def test_two_hosts_give_the_local_engines_bits(method, hosts):
    """The other methods, once each: four clients on two hosts, so that states travel."""
    recipe = recipe_of(method)
    expected = run_in_process(recipe, "rounds=2")
    assert_same_run(hosts.run(recipe, "rounds=2", "placement.clients_per_actor=2"), expected)
    assert_known_to_studies(expected, recipe)


@pytest.mark.slow  # one that is not is the last of this file
@pytest.mark.parametrize("method", EVERYWHERE)
def test_a_whole_run_on_ray_gives_the_local_engines_bits(method, shared_ray, tmp_path):
    """With a server's process and new client processes, as the command runs it."""
    options = EVERYWHERE.get(method, {})
    expected = run(method, tmp_path / "local", "rounds=2", local=True, **options)
    placed = "placement.clients_per_actor=2"
    assert_same_run(run(method, tmp_path / "ray", "rounds=2", placed, **options), expected)


def test_placements_of_the_first_test_use_one_two_and_four_hosts():
    recipe = load_recipe(small_recipe(RECIPE, "fedavg"))
    node = [Node(6, 0, 24 * 2**30)]
    hosts = [
        plan_hosts(load_recipe(recipe.model_dump(), [f"placement.clients_per_actor={n}"]), 4, node).num_hosts
        for n in (4, 2, 1)
    ]
    assert hosts == [1, 2, 4]


def test_bug_in_a_method_shows_its_own_traceback(shared_ray, tmp_path, own_module):
    own_module(
        "broken_on_ray",
        "from rayfed_kd.algorithms.fedavg import FedAvg\n\n\n"
        "class Broken(FedAvg):\n"
        "    def client_update(self, client, message, ctx):\n"
        "        raise ValueError('seventeen')\n",
    )
    recipe = {**RECIPE, "method": {"name": "broken_on_ray:Broken"}}
    with pytest.raises(Exception, match=r"round 1, client \d, client_update failed") as caught:
        rayfed_kd.run(recipe, [f"results.folder={tmp_path / 'run'}", "placement.clients_per_actor=4"])
    assert "ValueError: seventeen" in str(caught.value)
    assert "broken_on_ray.py" in str(caught.value)


@pytest.mark.parametrize("method", ["fedkf", "kdia"])
def test_a_reply_is_fetched_once_a_round_however_many_uses_it_has(method, tmp_path, monkeypatch):
    """FedKF uses a student twice, KDIA three times; a slot's vector is fetched when its client returns."""
    fetched, step = [], LocalEngine.submit

    class Counted(Held):
        def resolve(self):
            fetched.append(id(self))
            return super().resolve()

    def submit(self, calls, summed_sizes=()):
        futures = step(self, calls)
        results = [future.result() for future in futures]
        return [_done(replace(result, parts=Counted(result.parts.arrays))) for result in results]

    monkeypatch.setattr(LocalEngine, "submit", submit)
    run(method, tmp_path / "run", "rounds=1", "evaluation.samples=false", "checkpoint.every=null", local=True)
    # Once in the round, and once for the checkpoint at the run's end.
    assert sorted(Counter(fetched).values()) == [2] * 3


def test_whole_run_on_ray_gives_the_local_bits_and_nothing_large_passes_through_the_driver(
    shared_ray, tmp_path
):
    """What the driver receives while a run goes are events: numbers by name."""
    events, placed = [], ["placement.clients_per_actor=4", f"results.folder={tmp_path / 'ray'}"]
    expected = run("fedkf", tmp_path / "local", local=True)
    assert_same_run(rayfed_kd.run(recipe_of("fedkf"), placed, on_event=events.append), expected)
    assert [event["round"] for event in events] == [1, 2, 3]
    assert all(len(str(event)) < 5000 for event in events)


def test_a_live_state_is_packed_each_time_it_is_asked_for_and_no_state_is_none():
    state = LiveState({"model": torch.arange(3.0)})
    packed = state.resolve()["state"]
    assert packed.structure == ["mapping", [["model", ["tensor", 0, "cpu"]]]]
    assert packed.arrays[0].tolist() == [0.0, 1.0, 2.0]
    assert state.resolve()["state"] is not packed
    assert LiveState(None).resolve() == {"state": None}
