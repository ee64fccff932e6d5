"""How many hosts fit: decisions from numbers, without Ray."""

import re

import pytest

from rayfed_kd.cluster.ray_backend.placement import bundles, plan_hosts
from rayfed_kd.cluster.ray_backend.remote_run import actor_options
from rayfed_kd.cluster.ray_backend.resources import Node, divided
from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.timing.reading import read_timing

GIB = 2**30


def plan(nodes, *overrides):
    recipe = load_recipe({"method": {"name": "fedavg"}}, overrides)
    return plan_hosts(recipe, read_timing(recipe).schedule.concurrency, nodes)


def test_auto_packs_clients_when_cores_are_few():
    """3 CPU less the server's one: two hosts for 20 clients."""
    found = plan([Node(3, 0, 24 * GIB)])
    assert (found.num_hosts, found.pinned) == (2, False)


def test_auto_gives_each_client_an_actor_when_all_fit():
    found = plan([Node(64, 0, 256 * GIB)])
    assert (found.num_hosts, found.pinned) == (20, True)


def test_auto_starts_no_more_hosts_than_the_cohort_uses():
    """C = 0.2 of 20 clients: four."""
    assert plan([Node(12, 0, 256 * GIB)]).num_hosts == 4


def test_fractions_of_gpus_pack_by_device():
    """Two GPUs hold 3 actors of 0.3 each: six; in sum 2 / 0.3 would be 6.67."""
    found = plan([Node(64, 2, 256 * GIB)], "placement.client.num_gpus=0.3", "sampling.fraction=1.0")
    assert found.num_hosts == 6


def test_two_large_fractions_do_not_share_a_gpu():
    nodes = [Node(64, 2, 256 * GIB)]
    assert plan(nodes, "placement.client.num_gpus=0.6").num_hosts == 2


def test_many_small_machines_do_not_add_up():
    """Each machine holds one actor of 2 CPU, though 3 x 3 = 9 CPU would hold four."""
    found = plan([Node(3, 0, 24 * GIB)] * 3, "placement.client.num_cpus=2")
    assert found.num_hosts == 3


def test_impossible_request_is_refused_with_both_numbers():
    refusal = r"20 clients need 20 actors .* and 2 fit .* expected 10 or more.*client.num_cpus=0.1,"
    with pytest.raises(RecipeError, match=refusal):
        plan([Node(3, 0, 24 * GIB)], "placement.clients_per_actor=1")


def test_gpu_that_is_not_there_is_refused():
    with pytest.raises(RecipeError, match=r"a client actor of 1 CPU and 0.5 GPU do not fit"):
        plan([Node(3, 0, 24 * GIB)], "placement.client.num_gpus=0.5")


def test_n_clients_share_an_actor_when_told():
    found = plan([Node(8, 0, 24 * GIB)], "placement.clients_per_actor=5")
    assert (found.num_hosts, found.pinned) == (4, False)


def test_labels_decide_where_clients_fit():
    """Room for three on every machine, but only the two large ones are labelled so."""
    nodes = [Node(4, 0, 64 * GIB, labels={"kind": kind}) for kind in ("small", "large", "large")]
    server = "placement.server.num_cpus=1"
    wide = "sampling.fraction=1.0"
    assert plan(nodes, server, wide, "placement.client.label_selector={kind: large}").num_hosts == 8
    assert plan(nodes, server, wide, "placement.client.label_selector={kind: '!large'}").num_hosts == 4
    both = "placement.client.label_selector={kind: 'in(small, large)'}"
    assert plan(nodes, server, wide, both).num_hosts == 11


def test_label_that_is_not_there_is_no_value():
    unlabelled = [Node(4, 0, 64 * GIB)]
    assert plan(unlabelled, "placement.client.label_selector={kind: '!in(a, b)'}").num_hosts == 3
    with pytest.raises(RecipeError, match="where kind a do not fit"):
        plan(unlabelled, "placement.client.label_selector={kind: a}")


def test_own_resources_bound_the_hosts():
    """Five of them on a machine that the server takes one from: two actors of two."""
    nodes = [Node(64, 0, 256 * GIB, resources={"licence": 5})]
    asked = ["placement.client.resources={licence: 2}", "placement.server.resources={licence: 1}"]
    assert plan(nodes, *asked).num_hosts == 2
    with pytest.raises(RecipeError, match=r"1 CPU and 0 GPU, 6 licence do not fit .* 5 licence\)"):
        plan(nodes, "placement.client.resources={licence: 6}")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("client.label_selector={kind: c}", "client.label_selector: kind c, there is a, b"),
        ("server.label_selector={site: x}", "server.label_selector: site x, there is none"),
        ("server.resources={licence: 6}", "server.resources: 6 licence, a machine has 5 at most"),
        ("client.resources={gate: 1}", "client.resources: 1 gate, a machine has 0 at most"),
        ("client.num_gpus=1", ""),
    ],
)
def test_refusal_says_who_asks_for_what_no_machine_has(asked, told):
    nodes = [Node(8, 0, 64 * GIB, {"licence": 5}, {"kind": kind}) for kind in ("a", "b")]
    shown = r"2 machine\(s\) \(8 CPU, 0 GPU, 64 GiB, 5 licence, kind a; .*, kind b\)"
    told = told and f"; placement.{told}"
    with pytest.raises(RecipeError, match=f"do not fit on {shown}{re.escape(told)}$"):
        plan(nodes, f"placement.{asked}")


def test_server_lies_where_the_runs_folder_is_seen():
    nodes = [Node(4, 0, 64 * GIB, id="far", sees_folder=False), Node(4, 0, 64 * GIB, id="near")]
    found = plan(nodes)
    assert found.server_nodes == ("near",)
    first, *others = bundles(found).selectors
    assert first == {"ray.io/node-id": "in(near)"}
    assert others == [{}] * found.num_hosts
    assert plan([Node(4, 0, 64 * GIB, id="near")]).server_nodes == ()


def test_server_that_requests_nothing_is_put_where_the_folder_is_seen():
    """It has no bundle, so its options must name the machines."""
    nodes = [Node(4, 0, 64 * GIB, id="far", sees_folder=False), Node(4, 0, 64 * GIB, id="near")]
    chosen = plan(nodes, "placement.server.num_cpus=0")
    assert bundles(chosen).places[0] == -1
    assert actor_options(chosen, None)[0]["label_selector"] == {"ray.io/node-id": "in(near)"}
    assert "label_selector" not in actor_options(chosen, None)[1]
    with pytest.raises(RecipeError, match="does not see the run's folder"):
        plan(nodes[:1])


def test_bundles_are_the_server_and_every_host_by_hand():
    client = "placement.client={num_cpus: 1, num_gpus: 0.5, resources: {big: 1}}"
    nodes = [Node(4, 1, 64 * GIB, resources={"big": 9})]
    found = bundles(plan(nodes, client, "placement.server.num_cpus=0"))
    assert found.requests == [{"CPU": 1, "GPU": 0.5, "big": 1}] * 2
    assert found.places == [-1, 0, 1]  # a server that asks for nothing has no bundle


def test_share_of_a_machine_is_a_part_of_everything():
    (node,) = divided([Node(8, 2, 64 * GIB, {"big": 4}, {"kind": "x"}, "id", sees_folder=False)], 2)
    assert node == Node(4, 1, 32 * GIB, {"big": 2}, {"kind": "x"}, "id", sees_folder=False)


@pytest.mark.parametrize("selector", ["", "!", "in()", "a b", "in(a", "-a"])
def test_selector_that_ray_would_not_take_is_refused(selector):
    with pytest.raises(RecipeError, match=r"label_selector.kind = .*: expected a value, !value, in\(a, b\)"):
        plan([Node(4, 0, 64 * GIB)], f"placement.client.label_selector={{kind: '{selector}'}}")
