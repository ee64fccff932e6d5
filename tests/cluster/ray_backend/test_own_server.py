"""The server in the launching process, beside a private Ray."""

import json

import pytest
import torch
from small_recipes import FOUR_CLIENTS, small_recipe

import rayfed_kd

FEW = {**FOUR_CLIENTS, "sampling": {"fraction": 0.5}, "evaluation": {"samples": False}}
RECIPE = small_recipe(FEW, "fedavg")


@pytest.mark.slow
def test_listener_that_raises_ends_the_run_with_its_rounds_recorded(shared_ray, tmp_path):
    """As after Ctrl-C. The listener is called in the caller's thread, once a round, in order."""
    heard = []

    def listen(event):
        heard.append(event["round"])
        if len(heard) == 3:
            raise ValueError("enough")

    threads = torch.get_num_threads()
    with pytest.raises(ValueError, match="enough"):
        rayfed_kd.run(RECIPE, rounds=100_000, results={"folder": str(tmp_path / "run")}, on_event=listen)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "interrupted" and summary["rounds"] >= 3
    assert heard == [*range(1, len(heard) + 1)]
    assert torch.get_num_threads() == threads


@pytest.mark.slow
def test_server_with_an_actor_of_its_own_gives_the_same_bits(shared_ray, tmp_path, monkeypatch):
    """As on a cluster, or where the server wants a GPU."""
    here = rayfed_kd.run(RECIPE, results={"folder": str(tmp_path / "here")})
    monkeypatch.setattr("cluster.ray_backend.own_server.is_private", lambda: False)
    actor = rayfed_kd.run(RECIPE, results={"folder": str(tmp_path / "actor")})
    assert here.models.keys() == actor.models.keys()
    assert all((here.models[name] == actor.models[name]).all() for name in here.models)
