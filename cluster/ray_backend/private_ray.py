"""The environment in which a private Ray starts: its servers listen on loopback and ask for a token.

A module that may be the first to import Ray imports this one before it: Ray decides as it is imported, in
`ray._private.ray_constants`, whether the Rays that this process starts can be reached by other machines.
If Ray was imported earlier, by a notebook say, its private Ray listens on all interfaces, with the token.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import psutil

# What Ray starts for clusters, and no option of `ray.init` leaves out: the autoscaler asks for machines, the
# API server serves web pages, the log monitor brings workers' output to a driver that does not want it.
NEEDLESS = ("autoscaler/_private/monitor.py", "dashboard/dashboard.py", "_private/log_monitor.py")
MODE, TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"


@contextmanager
def private_environment() -> Iterator[None]:
    """Set the token while Ray starts: its processes inherit it, and this process's environment forgets it.

    With RAY_AUTH_MODE unset Ray (2.59 and later) turns tokens on for a Ray that it starts, and would write
    one to ~/.ray for all of a user's Rays; RAY_AUTH_TOKEN keeps it in memory. Setting the mode here would be
    too late: Ray reads it as it is imported. A mode that the user has set stays, with the user's own token.
    """
    if MODE in os.environ:
        yield
        return
    with set_variables({TOKEN: _token(), MODE: None}):
        yield


def end_needless_processes() -> None:
    """End the processes of the private Ray that one machine does not need: 170 MiB, and a port each.

    There are some where `lean_start` could not keep them from starting. To be called right after `ray.init`,
    while they still import. They are children of this process, so no other Ray's can be met. Ray does not
    look after them, and its end does without them.
    """
    children = psutil.Process().children()
    needless = [child for child in children if _is_needless(child)]
    for child in needless:
        child.kill()
    psutil.wait_procs(needless, timeout=5)


def _is_needless(process: psutil.Process) -> bool:
    try:
        return any(word.endswith(NEEDLESS) and "/ray/" in word for word in process.cmdline())
    except psutil.Error:  # it ended meanwhile
        return False


@cache
def _token() -> str:
    """The token of this process, the same for each Ray that it starts: Ray reads the token only once."""
    return secrets.token_hex(32)


@contextmanager
def set_variables(wanted: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables, or remove those whose value is None; afterwards restore what was there."""
    before = {name: os.environ.pop(name, None) for name in wanted}
    try:
        os.environ.update({name: value for name, value in wanted.items() if value is not None})
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


# Off Linux this is how Ray starts anyway: one machine, whose address is 127.0.0.1.
with set_variables({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}):
    import ray  # noqa: F401
