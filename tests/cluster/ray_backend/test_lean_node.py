"""What a private Ray starts, and that nothing of it outlives the command."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cluster.ray_backend import lean_node
from cluster.ray_backend.lean_node import (
    AGENT,
    AGENTS,
    PRELOADED,
    lean_start,
    with_fewer_workers,
    with_idle_agents,
)
from cluster.ray_backend.own_server import serves_here
from rayfed_kd.recipe.loading import load_recipe

ROOT = Path(__file__).parents[3]
# A private Ray as a run starts it, held until this process is killed.
HELD = """
import sys, time
from cluster.ray_backend.session import RaySession
from rayfed_kd.recipe.loading import load_recipe
assert "torch" not in sys.modules
with RaySession(load_recipe("quickstart"), None) as session:
    session.ready()
    print("ready", flush=True)
    time.sleep(600)
"""


def wait_until(true, seconds=30):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_raylet_gets_shells_for_its_agents_and_the_rest_of_its_command_stays():
    command = [
        "raylet",
        "--session_dir=/a b",
        "--node_id=7",
        "--dashboard_agent_command=python agent.py --x=1",
        "--labels=",
        "--runtime_env_agent_command=python main.py",
    ]
    changed = with_idle_agents(command)
    assert [one == other for one, other in zip(command, changed, strict=True)] == [
        *[True] * 3,
        False,
        True,
        False,
    ]
    assert changed[3].startswith("--dashboard_agent_command=/bin/sh -c ")
    assert changed[3].endswith(
        '"/a b/metrics_agent_port_7" "/a b/metrics_export_port_7" "/a b/dashboard_agent_listen_port_7"'
    )
    assert changed[5].endswith(' agent 1 "/a b/runtime_env_agent_port_7"')


def test_shell_in_an_agents_place_writes_its_ports_and_ends_with_its_pipe(tmp_path):
    files = [tmp_path / "a b", tmp_path / "c"]
    command = ["/bin/sh", "-c", AGENT, "agent", "-1", *map(str, files)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as shell:
        wait_until(lambda: all(file.exists() for file in files))
        assert [file.read_text() for file in files] == ["-1", "-1"]
        assert sorted(tmp_path.iterdir()) == files and shell.poll() is None
        shell.stdin.close()
        shell.wait(timeout=10)


def parts():
    from ray._private import node, ray_constants, services, utils

    return (
        node.Node,
        services.start_ray_process,
        utils.get_dashboard_dependency_error,
        ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV,
    )


@pytest.mark.parametrize(
    ("asked", "spared", "started"), [(9, 0, 4), (9, 1, 3), (2, 1, 1), (1, 1, 0), (0, 1, 0)]
)
def test_fewer_workers_start_with_ray_than_there_are_cores(asked, spared, started, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    command = ["raylet", f"--num_prestart_python_workers={asked}", "--x=5"]
    assert with_fewer_workers(command, spared) == [
        "raylet",
        f"--num_prestart_python_workers={started}",
        "--x=5",
    ]


def test_ray_is_as_it_was_after_the_start():
    before, environment = parts(), dict(os.environ)
    with lean_start():
        assert all(one is not other for one, other in zip(parts()[:3], before[:3], strict=True))
        assert parts()[3] is False
    assert parts() == before and dict(os.environ) == environment


@pytest.mark.parametrize("reason", ["environments", "another Ray", "Windows"])
def test_ray_starts_as_ever_where_it_cannot_be_lean(reason, monkeypatch):
    before = parts()
    if reason == "environments":
        monkeypatch.setenv("RAY_RUNTIME_ENV_HOOK", "mine.hook")
    elif reason == "another Ray":
        monkeypatch.delattr(lean_node.node_module.Node, "start_log_monitor")
    else:
        monkeypatch.setattr(os, "name", "nt")
    with lean_start():
        during = parts()
    assert during == before


def test_users_choice_of_what_workers_load_stays(monkeypatch):
    (name,) = PRELOADED
    monkeypatch.setenv(name, "json")
    with lean_start():
        assert os.environ[name] == "json"


@pytest.mark.slow
def test_command_that_is_killed_leaves_no_process():
    """GCS, raylet and workers end with it, as the kernel tells them; the shells by their pipe."""
    with subprocess.Popen([sys.executable, "-c", HELD], stdout=subprocess.PIPE, text=True, cwd=ROOT) as held:
        assert held.stdout.readline() == "ready\n"
        below = psutil.Process(held.pid).children(recursive=True)
        assert len([process for process in below if process.name() == "sh"]) == len(AGENTS)
        assert {"gcs_server", "raylet"} <= {process.name() for process in below}
        held.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(alive, below)))


@pytest.mark.parametrize("server", [{}, {"num_gpus": 1}, {"resources": {"tpu": 1}}])
def test_server_that_asks_for_nothing_special_is_the_launching_process(server, monkeypatch):
    recipe = load_recipe({"method": {"name": "fedavg"}, "placement": {"server": server}})
    for private in (False, True):
        monkeypatch.setattr("cluster.ray_backend.own_server.is_private", lambda answer=private: answer)
        assert serves_here(recipe) == (private and not server)
