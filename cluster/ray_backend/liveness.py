"""Whether Ray's own processes live, and whether the kernel has killed processes for lack of memory.

Of a raylet or GCS that was killed Ray tells nothing for 15 to 60 s. It then ends the calling process from
C++, with no message that a user could act on.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

import psutil
import ray

LOOK_S = 1.0  # seconds between two tries to connect to the GCS, and of one try
# Tries in a row that nothing answers: a network may lose packets. A refusal counts at once: nobody listens.
SILENT_TRIES = 4
OUT_OF_MEMORY = "; since the run began the kernel has ended processes of this machine for lack of memory"


class RayProcesses:
    """The raylet of this machine and the GCS of the Ray that this process is connected to."""

    def __init__(self) -> None:
        context = ray.get_runtime_context()
        host, _, port = context.gcs_address.rpartition(":")
        self._gcs, self._silent, self._looked = (host, int(port)), 0, 0.0
        self._raylet = _raylet_of(context.get_node_id())

    def lost(self) -> str:
        """What has ended, for people; empty if all are there."""
        if self._raylet is not None and not _alive(self._raylet):
            return "Ray's raylet on this machine has ended"
        if time.monotonic() - self._looked < LOOK_S:
            return ""
        self._looked = time.monotonic()
        try:
            socket.create_connection(self._gcs, timeout=LOOK_S).close()
        except ConnectionRefusedError:
            return "Ray's GCS, the server of its head, has ended"
        except OSError:
            self._silent += 1
            return (
                "Ray's GCS, the server of its head, does not answer" if self._silent >= SILENT_TRIES else ""
            )
        self._silent = 0
        return ""


def _raylet_of(node: str) -> psutil.Process | None:
    """The raylet with this node's id; None if other users' processes cannot be seen.

    A child that it has just forked, as a worker will be, has its name and command line for a moment, and a
    lower number once the system's numbers began again: the oldest is the raylet.
    """
    raylets = [
        process
        for process in psutil.process_iter(["name", "cmdline", "create_time"])
        if process.info["name"] == "raylet" and f"--node_id={node}" in (process.info["cmdline"] or ())
    ]
    return min(raylets, key=lambda process: process.info["create_time"], default=None)


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:  # it ended meanwhile
        return False


def kernel_kills() -> int:
    """How many processes the kernel of this machine has killed so far for lack of memory; 0 if unknown."""
    try:
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    except OSError:
        return 0
    return int(counts.get("oom_kill", 0))


_KILLS_BEFORE = kernel_kills()


def memory_hint() -> str:
    """What to add to the news of a lost process, if memory was short since this process has started."""
    return OUT_OF_MEMORY if kernel_kills() > _KILLS_BEFORE else ""
