"""Where and how a private Ray starts: it listens on loopback, asks for a token, and hides its files.

Other machines cannot reach it. Other users of this machine reach its ports, which ask for the token, and not
its sockets and logs, which lie in a folder of mode 0700.

A module that may be the first to import Ray imports this one before it: Ray decides as it is imported, in
`ray._private.ray_constants`, whether the Rays that this process starts can be reached by other machines.
If Ray was imported earlier, by a notebook say, its private Ray listens on all interfaces, with the token.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from rayfed_kd.errors import RecipeError, shown

MODE, TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
OWN_TOKEN = secrets.token_hex(32)  # the same for each Ray of this process, as Ray reads the token only once
PREFIX, RAYS = "rk-", "r"  # of a private Ray's folder, and the name of what Ray makes in it
# The longest path of a socket below the folder in which Ray's folder is made, and what Linux allows in all.
BELOW = "/rk-12345678/r/session_2026-11-25_13-42-31_963099_4194304/sockets/plasma_store"
MOST_OF_A_PATH = 107


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
    with set_variables({TOKEN: OWN_TOKEN, MODE: None}):
        yield


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder for a private Ray's sockets and logs that only this user may enter, removed afterwards.

    Ray itself would use /tmp/ray, where every user may replace its sockets, and leave its files there. A
    folder whose process was killed is removed at the next start: a lock says whether its process lives. It
    has Ray's folder in it and nothing else, by which it is told from other folders with such a name.
    """
    parent = _parent()
    for path in parent.glob(f"{PREFIX}*"):
        with suppress(OSError), _locked(path):  # OSError: no folder, another user's, or its process lives
            if [part.name for part in path.iterdir()] == [RAYS]:
                shutil.rmtree(path)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))  # of mode 0700
    with _locked(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _parent() -> Path:
    """Where a private Ray's files go: $RAY_TMPDIR, else the system's folder of temporary files, else /tmp.

    The system's folder is left out if the paths of sockets in it would be too long.

    Raises: RecipeError if they would be below RAY_TMPDIR.
    """
    named = os.environ.get("RAY_TMPDIR")
    if named and not _fits(named):
        raise RecipeError(
            f"RAY_TMPDIR = {shown(named)}: the sockets of a private Ray would have paths of more than "
            f"{MOST_OF_A_PATH} bytes below it; set RAY_TMPDIR to a folder with a short path, as "
            "RAY_TMPDIR=/tmp"
        )
    temporary = tempfile.gettempdir()
    return Path(named or (temporary if _fits(temporary) else "/tmp"))


def _fits(folder: str) -> bool:
    return len(os.fsencode(folder)) + len(BELOW) <= MOST_OF_A_PATH


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, which ends with the process. Raises: OSError if another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY)  # not inherited by Ray's processes
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


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
