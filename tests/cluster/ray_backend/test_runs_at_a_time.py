"""How many runs have room at a time, by hand."""

import pytest

from rayfed_kd.cluster.ray_backend.placement import rooms, runs_at_a_time
from rayfed_kd.cluster.ray_backend.resources import Node
from rayfed_kd.cluster.ray_backend.session import run_together
from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.loading import load_recipe

GIB = 2**30


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([], 8),
        (["placement.client.num_gpus=0.5"], 2),
        (["placement.client.resources={licence: 2}", "placement.server.resources={licence: 1}"], 2),
        (["placement.client.resources={gate: 1}"], 1),
        (["placement.client.num_cpus=0", "placement.server.num_cpus=0"], 2),
    ],
    ids=["cores", "GPUs", "own resources", "what is not there", "nothing"],
)
def test_as_many_runs_at_a_time_as_have_room_for_a_server_and_a_client_actor(asked, expected):
    """Two machines of 8 CPU, 1 GPU and 5 licences: halves have .5 GPU and 2.5 licences each, thirds less."""
    nodes = [Node(8, 1, 64 * GIB, {"licence": 5})] * 2
    assert rooms(load_recipe({"method": {"name": "fedavg"}}, asked), nodes, 100) == expected


def test_rows_with_other_requests_run_as_many_at_a_time_as_the_largest_has_room(monkeypatch):
    """Of 4 CPU a half holds a server of 1 and a client of 1; a client of 2 beside its server needs all."""
    monkeypatch.setattr("rayfed_kd.cluster.ray_backend.machines.ray_nodes", lambda: [Node(4, 0, 4 * GIB)])
    method, shares = {"method": {"name": "fedavg"}}, []
    small, large = (load_recipe(method, [f"placement.client.num_cpus={number}"]) for number in (1, 2))
    for recipes in ([small, small], [small, large]):
        run_together([lambda share, stop: shares.append(share)] * 2, recipes, None)
    assert shares == [2, 2, 1, 1]


def test_runs_at_a_time_have_room_on_their_part_of_every_machine():
    """Three machines of 2 CPU have 6 in all, three runs of 2; but a third of 2 CPU holds no actor of 1."""
    recipe, nodes = load_recipe({"method": {"name": "fedavg"}}), [Node(2, 0, 4 * GIB)] * 3
    assert rooms(recipe, nodes, 100) == 2
    assert rooms(recipe, nodes, 1) == 1
    assert runs_at_a_time("--jobs", 2, 5, recipe, nodes) == 2
    with pytest.raises(RecipeError, match=r"^--jobs 3: .* on 3 machine\(s\) \(2 CPU.*; expected at most 2$"):
        runs_at_a_time("--jobs", 3, 5, recipe, nodes)
