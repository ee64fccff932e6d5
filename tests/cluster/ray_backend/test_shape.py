"""A run on Ray: one server actor and client actors, and a launching process through which no array passes."""

import json
import os
import subprocess
import sys

import pytest
import ray
from paths import ROOT
from small_recipes import FOUR_CLIENTS, small_recipe
from waiting import wait_until

import rayfed_kd
from rayfed_kd.cluster.ray_backend.placement import plan_hosts
from rayfed_kd.cluster.ray_backend.resources import Node
from rayfed_kd.recipe.loading import load_recipe

FEW = {**FOUR_CLIENTS, "sampling": {"fraction": 0.5}, "evaluation": {"samples": False}}
GIB = 2**30
# A command's run, which looks at Ray's state in each round and counts what its own process unpickles.
WATCHED = """
import json, sys
import ray
import rayfed_kd
from numpy._core import multiarray, numeric

recipe, folder = json.loads(sys.argv[1]), sys.argv[2]
unpickled, put, seen = [], [], []
for module, name in ((numeric, "_frombuffer"), (multiarray, "_reconstruct")):
    def counted(*given, make=getattr(module, name)):
        unpickled.append(make(*given))
        return unpickled[-1]
    setattr(module, name, counted)
kept = ray.put
ray.put = lambda *given, **options: put.append(given) or kept(*given, **options)

def look(event):
    groups = ray.util.placement_group_table().values()
    groups = [one["bundles"] for one in groups if one["state"] == "CREATED"]
    actors = ray.util.list_named_actors(all_namespaces=True)
    seen.append({"groups": groups, "actors": actors, "arrays": len(unpickled), "put": len(put)})

begun = []
result = rayfed_kd.run(recipe, {"results.folder": folder}, on_event=look,
                       tell=rayfed_kd.results.telling.Teller(lambda line: None, begin=begun.append))
print(json.dumps({"seen": seen, "begun": begun, "models": len(result.models), "after": len(unpickled),
                  "left": ray.is_initialized()}))
"""


def plan(nodes, *overrides):
    recipe = load_recipe({"method": {"name": "fedavg"}, "partition": {"clients": 10}}, overrides)
    return plan_hosts(recipe, 10, nodes)


def test_header_says_how_many_actors_have_what():
    found = plan([Node(4, 1, 24 * GIB)], "placement.client={num_cpus: 1, num_gpus: 0.25}")
    assert found.described(10) == (
        "server actor, 1 CPU; 3 client actors for 10 clients, 1 CPU and 0.25 GPU each"
    )
    alone = plan([Node(2, 0, 24 * GIB)], "placement.server.num_cpus=0")
    assert (
        alone.described(10) == "server actor, no CPU of its own; 2 client actors for 10 clients, 1 CPU each"
    )


def test_header_says_own_resources_and_that_gpus_are_only_counted(monkeypatch):
    monkeypatch.setenv("RAYFED_KD_LOGICAL_GPUS", "1")
    request = "placement.client={num_gpus: 0.5, resources: {tpu: 1}}"
    found = plan([Node(64, 1, 256 * GIB, {"tpu": 4})], request)
    assert found.described(10) == (
        "server actor, 1 CPU; 2 client actors for 10 clients, 1 CPU and 0.5 logical GPU and 1 tpu each"
    )


def test_names_say_whether_an_actor_has_one_client():
    assert plan([Node(64, 0, 256 * GIB)]).name(7) == "client-7"
    assert plan([Node(4, 0, 24 * GIB)]).name(2) == "clients-2"


@pytest.mark.slow
@pytest.mark.parametrize("plain", ["", "1"])
def test_ray_shows_a_server_and_client_actors_and_no_array_passes_through_the_command(plain, tmp_path):
    """On a machine without a GPU, of which each client actor has a quarter all the same."""
    placement = {"clients_per_actor": 1, "client": {"num_cpus": 0.1, "num_gpus": 0.25}}
    recipe = small_recipe({**FEW, "placement": placement, "rounds": 2}, "fedkf")
    environment = {**os.environ, "RAYFED_KD_LOGICAL_GPUS": "1", "RAYFED_KD_PLAIN_RAY": plain}
    command = [sys.executable, "-c", WATCHED, json.dumps(recipe), str(tmp_path / "run")]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert [len(one["actors"]) for one in found["seen"]] == [5, 5]
    first = found["seen"][0]
    assert sorted(one["name"] for one in first["actors"]) == [*(f"client-{k}" for k in range(4)), "server"]
    assert len({one["namespace"] for one in first["actors"]}) == 1
    (bundles,) = first["groups"]
    assert list(bundles.values()) == [{"CPU": 1.0}, *[{"CPU": 0.1, "GPU": 0.25}] * 4]
    (header,) = found["begun"]
    assert header["processes"] == (
        "server actor, 1 CPU; 4 client actors for 4 clients, 0.1 CPU and 0.25 logical GPU each"
    )
    assert {(one["arrays"], one["put"]) for one in found["seen"]} == {(0, 0)}  # the server puts the blueprint
    assert found["after"] == found["models"] > 0  # the last models, of which `Result.models` are made
    assert not found["left"]


@pytest.mark.slow
def test_listener_that_raises_ends_the_run_with_its_rounds_recorded(shared_ray, tmp_path):
    """As after Ctrl-C. The listener is called in the caller's thread, once a round, in order."""
    heard = []

    def listen(event):
        heard.append(event["round"])
        if len(heard) == 3:
            raise ValueError("enough")

    recipe = small_recipe(FEW, "fedavg")
    with pytest.raises(ValueError, match="enough"):
        rayfed_kd.run(recipe, rounds=100_000, results={"folder": str(tmp_path / "run")}, on_event=listen)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "interrupted" and summary["rounds"] >= 3
    assert heard == [1, 2, 3]
    wait_until(lambda: not ray.util.list_named_actors(all_namespaces=True))
