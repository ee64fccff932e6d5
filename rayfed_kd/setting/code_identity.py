"""Which code a process runs: versions, and a hash of the three packages' sources.

A simulation runs in many processes, perhaps on many machines. One that runs other code than the rest
would spoil the result silently.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from rayfed_kd.errors import RunError

PACKAGES = ("rayfed_kd", "algorithms", "cluster")
VERSIONS = ("torch", "numpy", "ray")


@cache
def identity() -> Mapping[str, str]:
    """This process's identity: name -> version or hash. Cached, as the sources are read for it."""
    return {
        "Python": platform.python_version(),
        **{name: package_version(name) or "not installed" for name in VERSIONS},
        "rayfed-kd's source": source_hash(),
    }


def source_hash() -> str:
    """A hash of all Python files of the three packages, independent of where they are installed."""
    digest = hashlib.blake2b(digest_size=8)
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec is not None and spec.submodule_search_locations
        root = Path(next(iter(spec.submodule_search_locations)))
        for file in sorted(root.rglob("*.py")):
            # A zero byte ends the name and the hash has a fixed length, so other trees give other bytes.
            digest.update(f"{package}/{file.relative_to(root).as_posix()}\0".encode())
            digest.update(hashlib.blake2b(file.read_bytes()).digest())
    return digest.hexdigest()


def check_identity(expected: Mapping[str, str]) -> None:
    """Check that this process runs the expected code.

    Raises: RunError, which names this machine, if it does not.
    """
    difference = differences(expected, identity())
    if difference:
        raise RunError(f"machine {platform.node()}: {difference}; {REMEDY}")


REMEDY = "install the same everywhere, or submit the project with `ray job submit --working-dir`"


def differences(expected: Mapping[str, str], found: Mapping[str, str]) -> str:
    """The entries that differ, with both values, for messages; empty if none does.

    Args:
        expected: identity of the launching process's code ("here").
        found: identity of the code on the other machine or in the other process ("there").
    """
    return ", ".join(
        f"{name} {found.get(name, 'unknown')} there, {value} here"
        for name, value in expected.items()
        if found.get(name) != value
    )


def own_code(named: Iterable[str]) -> dict[str, str]:
    """A hash of each module of the user's own that a recipe names.

    Args:
        named: texts of a recipe; those of the form package.module:Object name a module.
    Returns: module -> hash of its file, of those that are found and are no installed package's.
    """
    modules = {text.partition(":")[0] for text in named if ":" in text}
    files = {module: _own_file(module) for module in sorted(modules)}
    return {module: _file_hash(file) for module, file in files.items() if file is not None}


def _own_file(module: str) -> Path | None:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # of a text with a colon that names no module
        return None
    file = None if spec is None or spec.origin is None else Path(spec.origin)
    own = file is not None and file.suffix == ".py" and "site-packages" not in file.parts
    return file if own else None


def _file_hash(file: Path) -> str:
    return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()


def package_version(package: str) -> str | None:
    """The version that is installed; None if it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
