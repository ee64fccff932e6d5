"""Lost hosts and steps that hang: the same result, or a message that says what."""

import os
import signal

import numpy as np
import psutil
import pytest
from ray_processes import actors
from runs import run_in_process
from small_recipes import FOUR_CLIENTS, assert_same_run, small_recipe

import rayfed_kd
from rayfed_kd.errors import RunError

RECIPE = {
    **small_recipe(FOUR_CLIENTS, "fedkf"),
    "rounds": 4,
    "sampling": {"fraction": 1.0},
    "evaluation": {"samples": False},
}
OWN = """
import os, time
from pathlib import Path

from rayfed_kd.algorithms.fedavg import FedAvg


class Hanging(FedAvg):
    def client_update(self, client, message, ctx):
        marker = Path("MARKER")
        if ctx.client == 1 and ctx.round == 2 and not marker.exists():
            marker.touch()
            time.sleep(600)
        return super().client_update(client, message, ctx)


class Dying(FedAvg):
    def client_update(self, client, message, ctx):
        if ctx.client == 1 and ctx.round == 2:
            os._exit(1)
        return super().client_update(client, message, ctx)
"""


@pytest.fixture
def own(own_module, tmp_path):
    """The module's name, of this test alone: workers of a Ray that stays find those of earlier tests, too."""
    return own_module(f"own_faults_{tmp_path.name}", OWN.replace("MARKER", str(tmp_path / "marker")))


def run(folder, *overrides, method, local=False):
    recipe = {**RECIPE, "method": {"name": method}}
    overrides = overrides if local else ("placement.clients_per_actor=2", *overrides)
    return rayfed_kd.run(recipe, [f"results.folder={folder}", *overrides], local=local)


def client_hosts():
    """This process's client actors, by pid."""
    return actors(psutil.Process())


def started(pid):
    """When a process started: ids begin again at 1 after 32,768."""
    return psutil.Process(pid).create_time()


def test_killed_host_changes_nothing(hosts):
    expected, killed = run_in_process(RECIPE), []

    def kill(record):
        """After the first round, a host of this run: the oldest of those that `hosts` has."""
        if record.round == 1:
            killed.append(min(client_hosts(), key=started))
            os.kill(killed[0], signal.SIGKILL)

    result = hosts.run(RECIPE, "placement.clients_per_actor=2", after_round=kill)
    assert len(killed) == 1
    assert_same_run(result, expected)
    assert any("restarted" in line or "lost" in line for line in result.told), result.told


# Without processes the same two are in test_short_steps.py.
@pytest.mark.slow
def test_host_that_dies_again_and_again_ends_the_run_with_call_and_way_to_go_on(own, shared_ray, tmp_path):
    with pytest.raises(RunError) as caught:
        run(tmp_path / "a", "faults.max_retries=1", "checkpoint.every=1", method=f"{own}:Dying")
    message = str(caught.value)
    assert "round 2, client 1, client_update: its host was lost 2 times (faults.max_retries = 1)" in message
    assert f"rayfed-kd resume {tmp_path / 'a'}" in message


@pytest.mark.slow
def test_step_that_hangs_is_killed_and_run_again(own, shared_ray, tmp_path):
    result = run(tmp_path / "a", "rounds=3", "faults.step_timeout_s=8", method=f"{own}:Hanging")
    assert result.summary["status"] == "finished"
    assert (tmp_path / "marker").exists()
    plain = run(tmp_path / "plain", "rounds=3", local=True, method="fedavg")
    assert np.array_equal(result.models["global"], plain.models["global"])
