"""What a private Ray starts, and that nothing of it outlives the command."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import ray
from waiting import wait_until

from rayfed_kd.cluster.ray_backend.lean_node import (
    AGENT,
    AGENTS,
    TESTED,
    can_be_lean,
    lean_start,
    with_idle_agents,
)

ROOT = Path(__file__).parents[3]
# A private Ray as a run starts it, held until this process is killed.
HELD = """
import sys, time
from rayfed_kd.cluster.ray_backend.session import RaySession
from rayfed_kd.recipe.loading import load_recipe
assert "torch" not in sys.modules
with RaySession(load_recipe("quickstart"), None) as session:
    session.ready()
    print("ready", flush=True)
    time.sleep(600)
"""


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
    same = [one == other for one, other in zip(command, changed, strict=True)]
    assert same == [True, True, True, False, True, False]
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


def test_version_in_the_constraints_is_one_of_those_that_were_tested():
    pinned = re.search(r"^ray==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned[1] in TESTED


@pytest.mark.skipif(not can_be_lean(), reason="a plain Ray is asked for")
def test_ray_is_as_it_was_after_the_start():
    before, environment = parts(), dict(os.environ)
    with lean_start():
        assert all(one is not other for one, other in zip(parts()[:3], before[:3], strict=True))
        assert parts()[3] is False
    assert parts() == before and dict(os.environ) == environment


@pytest.mark.parametrize("reason", ["environments", "another Ray", "the user", "Windows"])
def test_ray_starts_as_it_does_itself_where_it_may_not_be_lean(reason, monkeypatch):
    before, called = parts(), []
    if reason == "environments":
        monkeypatch.setenv("RAY_RUNTIME_ENV_HOOK", "mine.hook")
    elif reason == "another Ray":
        monkeypatch.setattr(ray, "__version__", "2.60.1")
    elif reason == "the user":
        monkeypatch.setenv("RAYFED_KD_PLAIN_RAY", "1")
    else:
        monkeypatch.setattr(os, "name", "nt")
    with lean_start(lambda: called.append("under way")):
        during = parts()
    assert during == before
    assert called == ["under way"]  # nobody waits for a raylet that Ray starts itself


@pytest.mark.slow
@pytest.mark.parametrize("plain", ["", "1"])
def test_command_that_is_killed_leaves_no_process(plain):
    """GCS, raylet and workers end with it, as the kernel tells them; the shells by their pipe."""
    environment = {**os.environ, "RAYFED_KD_PLAIN_RAY": plain}
    command = [sys.executable, "-c", HELD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as held:
        assert held.stdout.readline() == "ready\n"
        below = psutil.Process(held.pid).children(recursive=True)
        shells = [process for process in below if process.name() == "sh"]
        assert len(shells) == (0 if plain else len(AGENTS))
        assert {"gcs_server", "raylet"} <= {process.name() for process in below}
        held.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(alive, below)), 120 if plain else 30)  # Ray's agents take their time


@pytest.mark.slow
def test_process_answers_sigterm_after_its_ray_has_ended():
    """Ray takes the answer away in the process itself, of which Python does not know."""
    begun = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: print('answered'))"
    ended = HELD.replace("time.sleep(600)", "pass")
    command = [sys.executable, "-c", f"{begun}{ended}signal.raise_signal(signal.SIGTERM)"]
    assert subprocess.check_output(command, text=True, cwd=ROOT) == "ready\nanswered\n"
