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
    with _environment({TOKEN: _token(), MODE: None}):
        yield


@cache
def _token() -> str:
    """The token of this process, the same for each Ray that it starts: Ray reads the token only once."""
    return secrets.token_hex(32)


@contextmanager
def _environment(wanted: Mapping[str, str | None]) -> Iterator[None]:
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
with _environment({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}):
    import ray  # noqa: F401
