"""Three machines (Ray's own test cluster, all on this one): the same bits, packing, lost machines."""

import json
import os
import re
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.experimental import get_object_locations
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from small_recipes import FOUR_CLIENTS, assert_same_run, small_recipe
from waiting import wait_until

import rayfed_kd
from rayfed_kd.cli.doctor import report
from rayfed_kd.cluster.ray_backend.handles import Ahead
from rayfed_kd.errors import RecipeError, RunError

# Slow: `make slow` runs one after another. Two clusters at a time are too much for two cores.
pytestmark = pytest.mark.slow
RECIPE = {**FOUR_CLIENTS, "rounds": 3, "sampling": {"fraction": 1.0}, "evaluation": {"samples": False}}
SITES = ("a", "b", "b")
# Tells where each client's step ran: machine and GPU, as Ray says.
WHERE = """
import json, os
from pathlib import Path

import ray

from rayfed_kd.algorithms.fedavg import FedAvg


class Telling(FedAvg):
    def client_update(self, client, message, ctx):
        context = ray.get_runtime_context()
        where = [context.get_node_id(), *context.get_accelerator_ids().get("GPU", [])]
        Path("FOLDER", f"{ctx.client}.json").write_text(json.dumps(where))
        return super().client_update(client, message, ctx)
"""


@pytest.fixture(scope="module")
def machines(tmp_path_factory, no_ray):
    """Three machines of two cores and a logical GPU, each with a data cache of its own."""
    folder = tmp_path_factory.mktemp("machines")
    os.environ["RAYFED_KD_LOGICAL_GPUS"] = "1"
    cluster = Cluster()
    try:
        for place, site in enumerate(SITES):
            cluster.add_node(**machine(folder / f"cache{place}", site))
        ray.init(address=cluster.address, log_to_driver=False)
        cluster.wait_for_nodes()
        yield cluster
    finally:  # also if a machine did not start: the next module's Ray must not find it
        ray.shutdown()
        cluster.shutdown()
        os.environ.pop("RAYFED_KD_LOGICAL_GPUS")


def machine(cache, site, **environment):
    return {
        "num_cpus": 2,
        "num_gpus": 1,
        "labels": {"site": site},
        "resources": {"scratch": 2},
        "object_store_memory": 80 * 2**20,
        "env_vars": {"RAYFED_KD_CACHE": str(cache), **environment},
    }


def caches(cluster):
    return [Path(node._ray_params.env_vars["RAYFED_KD_CACHE"]) for node in cluster.list_all_nodes()]


def run(folder, *overrides, method="fedavg", local=False, **options):
    recipe = small_recipe(RECIPE, method)
    return rayfed_kd.run(recipe, [f"results.folder={folder}", *overrides], local=local, **options)


@pytest.fixture
def telling(tmp_path, own_module):
    """A method by name, of this test alone, and what tells where its four clients ran."""
    module = own_module(f"own_{tmp_path.name}", WHERE.replace("FOLDER", str(tmp_path)))

    def found():
        return [json.loads((tmp_path / f"{client}.json").read_text()) for client in range(4)]

    return f"method={{name: {module}:Telling}}", found


def ids(site):
    return {node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Labels"].get("site") == site}


@pytest.mark.parametrize("method", ["fedavg", "fedkf"])
def test_three_machines_give_the_local_engines_bits(method, machines, tmp_path):
    """Data shipped into each machine's own cache; a method without and one with client state."""
    expected = run(tmp_path / "local", method=method, local=True)
    spread = ["placement.strategy=spread", "placement.clients_per_actor=1", "placement.data=ship"]
    assert_same_run(run(tmp_path / "ray", *spread, method=method), expected)
    (entry,) = {path.name for cache in caches(machines) for path in cache.glob("digits-*")}
    assert all((cache / entry / "meta.json").is_file() for cache in caches(machines))


def test_large_replies_and_their_sums_cross_between_machines_with_the_same_bits(machines, tmp_path):
    asked = ["model={name: mlp, hidden: 600}", "rounds=2"]  # 45,010 parameters, 180 kB
    spread = ["placement.strategy=spread", "placement.clients_per_actor=2"]
    for sums in ("off", 2):
        both = [*asked, f"local.sum_replies={sums}"]
        expected = run(tmp_path / f"local{sums}", *both, local=True)
        assert_same_run(run(tmp_path / f"ray{sums}", *both, *spread), expected)


def test_an_object_on_another_machine_is_fetched_ahead(machines):
    own = ray.get_runtime_context().get_node_id()
    far = next(node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != own)
    there = NodeAffinitySchedulingStrategy(far, soft=False)
    ref = ray.remote(lambda: {"part": np.ones(200_000)}).options(scheduling_strategy=there).remote()
    ray.wait([ref], fetch_local=False)

    def places():
        return get_object_locations([ref])[ref]["node_ids"]

    # The object's owner hears of its places a moment after they changed.
    wait_until(lambda: places() == [far])
    Ahead().fetch(ref, "another", 1_600_000)
    wait_until(lambda: own in places())


def test_trials_of_a_search_have_their_data_on_every_machine(machines, tmp_path):
    """One trial of four hosts and a server: more than a machine holds."""
    before = [set(cache.glob("digits-*")) for cache in caches(machines)]
    space = tmp_path / "space.yaml"
    space.write_text("space:\n  local.optimizer.lr: {choice: [0.05]}\n")
    placed = ["placement.clients_per_actor=1", "placement.data=ship", "data.fraction=0.15"]
    recipe, folder = small_recipe(RECIPE, "fedavg"), tmp_path / "search"
    found = rayfed_kd.tune(recipe, space, placed, search="grid", concurrent=1, folder=folder)
    assert [row.status for row in found.rows] == ["finished"], found.failures()
    new = [set(cache.glob("digits-*")) - old for cache, old in zip(caches(machines), before, strict=True)]
    assert [len(entries) for entries in new] == [1, 1, 1]


def test_fractions_pack_on_one_gpu_when_pack_is_asked(machines, telling, tmp_path):
    method, where_clients_ran = telling
    quarter = "placement.client={num_cpus: 0.25, num_gpus: 0.25}"
    placed = [quarter, "placement.clients_per_actor=1", "placement.server={num_cpus: 0.5}", "rounds=1"]
    run(tmp_path / "run", *placed, method)
    assert len({tuple(where) for where in where_clients_ran()}) == 1
    assert len(where_clients_ran()[0]) == 2  # machine and GPU


def test_spread_uses_several_machines(machines, telling, tmp_path):
    """Four clients of half a core would fit on one of them. What an earlier run had must be free again."""
    method, where_clients_ran = telling
    while ray.available_resources().get("CPU") != 2 * len(SITES):
        time.sleep(0.5)
    placed = ["placement.clients_per_actor=1", "placement.client.num_cpus=0.5", "rounds=1"]
    placed += ["placement.server.num_cpus=0.5", "placement.strategy=spread"]
    run(tmp_path / "run", *placed, method)
    assert len({where[0] for where in where_clients_ran()}) > 1


def test_labels_and_own_resources_say_where_clients_are(machines, telling, tmp_path):
    method, where_clients_ran = telling
    client = "placement.client={num_cpus: 1, resources: {scratch: 1}, label_selector: {site: '!b'}}"
    placed = [
        client,
        "placement.clients_per_actor=4",
        "rounds=1",
        "placement.server={label_selector: {site: b}}",
    ]
    run(tmp_path / "run", *placed, method)
    assert {where[0] for where in where_clients_ran()} == ids("a")


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (
            "{label_selector: {site: c}}",
            r"a client actor of 1 CPU and 0 GPU where site c do not fit on 3 machine",
        ),
        ("{resources: {scratch: 3}}", r"a client actor of 1 CPU and 0 GPU, 3 scratch do not fit"),
        ("{num_gpus: 2}", r"a client actor of 1 CPU and 2 GPU do not fit on 3 machine\(s\) \(2 CPU, 1 GPU"),
    ],
)
def test_what_no_machine_has_is_refused_with_both(client, message, machines, tmp_path):
    with pytest.raises(RecipeError, match=message):
        run(tmp_path / "run", f"placement.client={client}")
    assert not (tmp_path / "run").exists()  # so that the same command, mended, finds it free


# What a machine with another numpy would report, from its very start.
OTHER_NUMPY = """
from importlib import metadata

known = metadata.version
metadata.version = lambda name: "0.0" if name == "numpy" else known(name)
"""


def test_machine_with_another_version_is_refused(machines, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(OTHER_NUMPY)
    other = machines.add_node(**machine(tmp_path / "cache", "z", PYTHONPATH=str(tmp_path)))
    try:
        with pytest.raises(RunError, match=r"machine .*: numpy 0\.0 there, [\d.]+ here; install the same"):
            run(tmp_path / "run")
    finally:
        machines.remove_node(other)


def test_doctor_shows_every_machine(machines):
    lines = "\n".join(map("  ".join, report(machines.address)))
    assert lines.count("2 CPU, 1 GPU") == 3
    assert lines.count("code: as here") == 3


def test_rounds_and_bytes_are_served_to_prometheus(machines, tmp_path):
    if any(node["MetricsExportPort"] < 0 for node in ray.nodes()):
        pytest.skip("no metrics port: Ray's agent is not there without ray[default]")
    result = run(tmp_path / "metered", "rounds=2")
    sent = {way: sum(result.tables["rounds"][f"bytes_{way}"].to_pylist()) for way in ("up", "down")}
    expected = {"rounds": 2.0, "bytes up": float(sent["up"]), "bytes down": float(sent["down"])}
    wait_until(lambda: metered(served()) == expected)


def metered(lines):
    """Of the run of that name: what -> value."""
    found = {}
    for line in lines:
        told = re.match(r"ray_rayfed_kd_(rounds|bytes)(?:_total)?{(.*)} (\S+)$", line)
        if told and 'run="metered"' in told[2]:
            way = re.search(r'direction="(\w+)"', told[2])
            found[f"{told[1]} {way[1]}" if way else told[1]] = float(told[3])
    return found


def served():
    """The lines of every machine's metrics port."""
    for node in ray.nodes():
        if node["Alive"]:
            url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
            with urllib.request.urlopen(url, timeout=10) as answer:
                yield from answer.read().decode().splitlines()


def test_busy_cluster_is_waited_for(machines, tmp_path, monkeypatch):
    """Another job has all cores for a while: the run says so, and begins when there is room."""
    monkeypatch.setattr("rayfed_kd.cluster.ray_backend.remote_run.NOTICE_S", 1.0)
    group = ray.util.placement_group([{"CPU": 2}] * 3)
    assert group.wait(30)
    told = []

    def tell(line):
        if "waiting up to 10 minutes: there is no room for" in line and not told:
            told.append(line)
            ray.util.remove_placement_group(group)

    result = run(tmp_path / "run", "rounds=1", tell=tell)
    assert result.summary["status"] == "finished"
    assert told


@pytest.mark.parametrize("cpus", [1, 1.5], ids=["room elsewhere", "no room elsewhere"])
def test_lost_machine_changes_nothing(cpus, machines, tmp_path):
    """A machine goes in round 2: its host starts elsewhere or, without room for it, others do its work."""
    expected = run(tmp_path / "local", method="fedkf", local=True)
    extra = machines.add_node(**machine(tmp_path / "cache", "c"))
    lost = []

    def on_event(event):
        if event["round"] == 1:
            lost.append(event)
            machines.remove_node(extra, allow_graceful=False)

    placed = ["placement.clients_per_actor=1", "placement.strategy=spread", "faults.durable=true"]
    placed += [
        "placement.server={num_cpus: 0.5, label_selector: {site: a}}",
        f"placement.client.num_cpus={cpus}",
    ]
    result = run(tmp_path / "ray", *placed, method="fedkf", on_event=on_event)
    assert lost
    assert_same_run(result, expected)
    wait_until_gone()


def test_lost_machine_without_second_copies_ends_equal_or_says_how_to_go_on(machines, tmp_path):
    expected = run(tmp_path / "local", method="fedkf", local=True)
    extra = machines.add_node(**machine(tmp_path / "cache", "c"))

    def on_event(event):
        if event["round"] == 1:
            machines.remove_node(extra, allow_graceful=False)

    placed = ["placement.clients_per_actor=1", "placement.strategy=spread", "checkpoint.every=1"]
    placed += ["placement.server={num_cpus: 0.5, label_selector: {site: a}}"]
    folder = tmp_path / "ray"
    try:
        result = run(folder, *placed, method="fedkf", on_event=on_event)
    except RunError as error:
        assert f"rayfed-kd resume {folder}" in str(error)
        result = rayfed_kd.resume(folder)
    assert_same_run(result, expected)
    wait_until_gone()


def wait_until_gone():
    """Until Ray knows that the machine is lost: the next test must not find it."""
    wait_until(lambda: sum(node["Alive"] for node in ray.nodes()) <= len(SITES))
