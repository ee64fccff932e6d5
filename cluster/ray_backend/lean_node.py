"""A private Ray of GCS, raylet and workers only: an optimisation for tested versions of Ray.

`ray.init` starts five more processes, for clusters: the autoscaler asks for machines, the API server serves
web pages, the log monitor brings workers' output to a driver that does not want it, the dashboard's agent
takes jobs and serves metrics, and the other agent builds environments for workers. They import for 3 s of
CPU, which `ray.init` and the first worker wait for, hold 300 MiB, and take two seconds to end. No option of
Ray 2.60 leaves them out. So the node that `ray.init` makes is replaced by one that does not start them. The
raylet insists on its two agents: it gets two shells that say that they serve nothing, and sleep.

These are private parts of Ray. So every other version, and RAYFED_KD_PLAIN_RAY=1, starts Ray as it does
itself.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rayfed_kd.cluster.ray_backend.private_ray import set_variables

import ray  # isort: skip  # after `private_ray`, which says why
import ray._private.node as node_module
from ray._private import ray_constants, services, utils

TESTED = ("2.60.0",)  # versions of Ray with which the tests have passed both ways
PLAIN = "RAYFED_KD_PLAIN_RAY"

# A shell that writes what the raylet waits for, the ports of the agent that it stands for, and sleeps. With
# PIPE its input is a pipe from the raylet, which ends with it, also if it is killed. Ctrl-C in a terminal
# goes to all processes; the raylet would end with the shell, and the command with the raylet.
AGENT = """trap '' INT; port=$1; shift
for f; do printf %s "$port" > "$f.new"; mv "$f.new" "$f"; done; read -r _"""
PIPE = "RAY_enable_pipe_based_agent_to_parent_health_check"
# Option of the raylet -> the port that stands for no service, and the files in which it is looked for.
AGENTS = {
    "--dashboard_agent_command": (
        "-1",
        ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"),
    ),
    # Nobody but the system's owner can listen there: who asks for an environment is refused.
    "--runtime_env_agent_command": ("1", ("runtime_env_agent_port",)),
}
# What a user sets to give workers an environment, which needs the agent that is left out.
ENVIRONMENTS = ("RAY_RUNTIME_ENV_HOOK", "RAY_JOB_CONFIG_JSON_ENV_VAR")


class LeanNode(node_module.Node):
    """Ray's node, without the processes of a cluster's head."""

    def start_monitor(self) -> None:
        """Start no autoscaler."""

    def start_log_monitor(self) -> None:
        """Start no log monitor."""

    def start_api_server(self, **options: Any) -> None:
        """Start no API server."""


@contextmanager
def lean_start(under_way: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Let `ray.init` within the block start GCS, raylet and workers only, where `can_be_lean`.

    Workers of such a Ray have this process's environment: none of their own can be asked for.

    Args:
        under_way: called when the raylet was started: from then on `ray.init` mostly waits.
    """
    starts = services.start_ray_process

    def start_process(command: list[str], kind: str, *words: Any, **options: Any) -> Any:
        if kind != ray_constants.PROCESS_TYPE_RAYLET:
            return starts(command, kind, *words, **options)
        raylet = starts(with_idle_agents(command), kind, *words, **options)
        under_way()
        return raylet

    if not can_be_lean():
        under_way()
        yield
        return
    with ExitStack() as block:
        block.enter_context(set_variables({PIPE: "1"}))
        for owner, name, value in (
            (node_module, "Node", LeanNode),
            (services, "start_ray_process", start_process),
            # It imports aiohttp and more to see whether they are there.
            (utils, "get_dashboard_dependency_error", lambda: None),
            # Under `uv run` it would ask for an environment; workers have this one's Python anyway.
            (ray_constants, "RAY_ENABLE_UV_RUN_RUNTIME_ENV", False),
        ):
            block.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


def can_be_lean() -> bool:
    """Whether this Ray was tested so, and nobody asks for a plain one or for environments."""
    return (
        ray.__version__ in TESTED
        and os.name == "posix"
        and os.environ.get(PLAIN) != "1"
        and not any(name in os.environ for name in ENVIRONMENTS)
    )


def with_idle_agents(command: Sequence[str]) -> list[str]:
    """A raylet's command with shells in place of its agents."""
    options = dict(word.partition("=")[::2] for word in command)
    folder, node = Path(options["--session_dir"]), options["--node_id"]

    def idle(word: str) -> str:
        option = word.partition("=")[0]
        if option not in AGENTS:
            return word
        port, names = AGENTS[option]
        files = [str(folder / f"{name}_{node}") for name in names]
        return f"{option}={subprocess.list2cmdline(['/bin/sh', '-c', AGENT, 'agent', port, *files])}"

    return [idle(word) for word in command]
