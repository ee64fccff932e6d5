"""A Ray that has lost its raylet or GCS, and processes that were killed for lack of memory, are named."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
import ray
from paths import ROOT
from waiting import wait_until

from rayfed_kd.cluster.ray_backend import liveness
from rayfed_kd.cluster.ray_backend.dispatch.host_calls import cause_of_loss
from rayfed_kd.cluster.ray_backend.liveness import SILENT_TRIES, RayProcesses, kernel_kills, memory_hint


@pytest.fixture
def gcs():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def raylet(tmp_path):
    """A process that looks like a node's raylet."""
    script = tmp_path / "raylet"
    script.write_text("#!/bin/sh\nread -r _\n")
    script.chmod(0o755)
    with subprocess.Popen([script, "--x=1", "--node_id=ab12"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.fixture
def watched(gcs, raylet, monkeypatch):
    place = f"127.0.0.1:{gcs.getsockname()[1]}"
    context = SimpleNamespace(gcs_address=place, get_node_id=lambda: "ab12")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(liveness, "LOOK_S", 0.2)
    return RayProcesses()


def look_again(watched):
    time.sleep(0.25)
    return watched.lost()


def test_nothing_is_lost_while_both_are_there(watched):
    assert [watched.lost(), watched.lost(), look_again(watched)] == ["", "", ""]


def test_raylet_that_was_killed_is_named(watched, raylet):
    raylet.kill()
    while psutil.Process(raylet.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert watched.lost() == "Ray's raylet on this machine has ended"


def test_child_that_the_raylet_has_just_forked_is_not_taken_for_it(watched, monkeypatch):
    """It looks alike until it is another program, and its number is lower where numbers began again."""
    info = {"name": "raylet", "cmdline": ["raylet", "--node_id=ab12"], "create_time": time.time() + 1}
    younger, iterate = SimpleNamespace(info=info, is_running=lambda: False), psutil.process_iter
    monkeypatch.setattr(psutil, "process_iter", lambda attributes: [younger, *iterate(attributes)])
    assert RayProcesses().lost() == ""


def test_gcs_that_refuses_connections_is_named(watched, gcs):
    assert watched.lost() == ""
    gcs.close()
    assert look_again(watched) == "Ray's GCS, the server of its head, has ended"


def test_gcs_that_is_silent_is_named_after_some_tries(watched, monkeypatch):
    """A network may lose packets."""

    def silent(place, timeout):
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", silent)
    found = [look_again(watched) for _ in range(SILENT_TRIES)]
    assert found == [*[""] * (SILENT_TRIES - 1), "Ray's GCS, the server of its head, does not answer"]


def test_host_that_ray_ended_for_memory_is_said_so():
    error = ray.exceptions.OutOfMemoryError("Task was killed due to the node running low on memory.")
    assert cause_of_loss(error).startswith("was killed when its machine ran out of memory: Task was killed")


def test_host_that_the_kernel_ended_for_memory_is_said_so(monkeypatch):
    error = ray.exceptions.ActorUnavailableError("The actor is unavailable\nmore", None)
    assert "memory" not in cause_of_loss(error)
    before = kernel_kills()
    monkeypatch.setattr(liveness, "kernel_kills", lambda: before + 1)
    assert memory_hint().endswith("for lack of memory")
    assert cause_of_loss(error).splitlines()[0].endswith("for lack of memory")


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["raylet", "gcs_server", "all", "all, Ray late"])
def test_command_ends_soon_after_its_ray_with_a_line_and_the_way_on(victim, tmp_path):
    """Ray itself would end it after 15 s and 60 s, without a word. SIGTERM to all is what `timeout` sends.

    On a busy machine Ray's own processes end seconds after the others.
    """
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "rayfed_kd", "run", "configs/quickstart.yaml", "rounds=100000"]
    command += ["data.fraction=0.2", "local.epochs=1", "checkpoint.every=2", f"results.folder={folder}"]
    with subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        wait_until(lambda: list(folder.glob("checkpoints/*.json")), 240, run)
        below = psutil.Process(run.pid).children(recursive=True)
        if victim == "all":
            os.killpg(run.pid, signal.SIGTERM)
        elif victim == "all, Ray late":
            late = [process for process in below if process.name() in ("raylet", "gcs_server", "sh")]
            for process in (psutil.Process(run.pid), *(set(below) - set(late))):
                process.terminate()
            time.sleep(2.5)
            for process in late:
                process.terminate()
        else:
            next(process for process in below if process.name() == victim).send_signal(signal.SIGKILL)
        _, said = run.communicate(timeout=14)
    assert run.returncode == 1
    name = {"raylet": "Ray's raylet", "gcs_server": "Ray's GCS"}.get(victim, "Ray's ")
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: {name}")
    assert f"rayfed-kd resume {folder}" in said
    assert "Traceback" not in said
    assert json.loads((folder / "environment.json").read_text())["engine"] == "ray"
