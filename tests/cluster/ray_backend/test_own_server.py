"""The server in the launching process, beside a private Ray."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from small_recipes import FOUR_CLIENTS, assert_same_run, small_recipe

import rayfed_kd
from cluster.ray_backend.dispatch import patience
from cluster.ray_backend.own_server import _trains_here
from rayfed_kd.errors import RunError
from rayfed_kd.experiment.preparation import prepare

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


# Stateless; with states and slots; with questions of the server.
@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedkf", "fedgems"])
def test_server_that_trains_and_one_with_an_actor_of_its_own_give_the_same_bits(
    method, shared_ray, tmp_path, monkeypatch
):
    """The second as on a cluster, or where the server wants a GPU."""
    recipe = small_recipe(FEW, method)
    here = rayfed_kd.run(recipe, results={"folder": str(tmp_path / "here")})
    monkeypatch.setattr("cluster.ray_backend.own_server.is_private", lambda: False)
    actor = rayfed_kd.run(recipe, results={"folder": str(tmp_path / "actor")})
    assert_same_run(here, actor)


def test_server_does_not_train_where_ctrl_c_could_not_end_it(monkeypatch):
    """In the background of a script, and in another thread than the first."""
    setting = prepare(RECIPE).setting
    assert _trains_here(setting)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert not _trains_here(setting)
    finally:
        signal.signal(signal.SIGINT, before)
    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(_trains_here, setting).result()


@pytest.mark.slow
def test_run_whose_only_host_is_at_home_has_no_other(shared_ray, tmp_path):
    """One client a round: a second host would stand idle."""
    recipe = {**RECIPE, "partition": {"name": "iid", "clients": 12}, "sampling": {"count": 1}}
    alone = rayfed_kd.run(recipe, results={"folder": str(tmp_path / "run")})
    assert set(alone.tables["hosts"]["host"].to_pylist()) == {0}
    local = rayfed_kd.run(recipe, results={"folder": str(tmp_path / "local")}, local=True)
    assert_same_run(alone, local)


HANGING = """
import os
import time

from algorithms.fedavg import FedAvg


class Hanging(FedAvg):
    def client_update(self, client, message, ctx):
        if ctx.round == 3 and os.environ["SERVER"] == str(os.getpid()):
            time.sleep(600)
        return super().client_update(client, message, ctx)
"""


@pytest.mark.slow
def test_step_that_hangs_in_the_servers_process_ends_the_run_which_can_go_on(
    shared_ray, tmp_path, monkeypatch
):
    """It cannot be ended alone: the run ends as after Ctrl-C, with a checkpoint of the rounds before."""
    (tmp_path / "hanging_at_home.py").write_text(HANGING)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SERVER", str(os.getpid()))
    for name, seconds in (("FIRST_S", 30.0), ("LEAST_S", 2.0), ("LOOK_S", 0.5)):
        monkeypatch.setattr(patience, name, seconds)
    recipe = {**RECIPE, "method": {"name": "hanging_at_home:Hanging"}, "rounds": 4}
    message, told = (
        r"round 3, client \d, client_update, in this process, took longer than .*train_in_server",
        [],
    )
    with pytest.raises(RunError, match=message):
        rayfed_kd.run(recipe, results={"folder": str(tmp_path / "run")}, tell=told.append)
    assert not [line for line in told if "restarted" in line]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 2
    monkeypatch.setenv("SERVER", "0")
    resumed = rayfed_kd.resume(tmp_path / "run", local=True)
    whole = rayfed_kd.run(recipe, results={"folder": str(tmp_path / "whole")}, local=True)
    assert_same_run(resumed, whole)
