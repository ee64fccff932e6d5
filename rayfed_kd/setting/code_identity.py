"""Which code a process runs: versions, and a hash of the package's sources.

A simulation runs in many processes, perhaps on many machines. One that runs other code than the rest
would spoil the result silently.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from rayfed_kd.errors import RecipeError, RunError, shown
from rayfed_kd.files.folders import path_fault
from rayfed_kd.files.own_modules import own_file, own_files
from rayfed_kd.recipe.schema import Recipe

ROOT = Path(__file__).parents[1]
# Of the user's own modules: the imports that this process has used, by id, and their files' hashes then.
_IMPORTED: dict[int, tuple[ModuleSpec, str]] = {}


@cache
def identity() -> Mapping[str, str]:
    """This process's identity: name -> version or hash. Cached, as the sources are read for it."""
    return {
        "Python": platform.python_version(),
        **{name: package_version(name) or "not installed" for name in ("torch", "numpy", "ray")},
        "rayfed-kd's source": source_hash(),
    }


def source_hash() -> str:
    """A hash of all Python files of the package and its tables, independent of where it is installed."""
    digest = hashlib.blake2b(digest_size=8)
    # In a clone `algorithms` and `cluster` are links, which `rglob` does not follow.
    folders = os.walk(ROOT, followlinks=True)
    files = [
        Path(folder, name)
        for folder, _, names in folders
        for name in names
        if name.endswith(".py") or (name.endswith(".yaml") and "configs" not in Path(folder).parts)
    ]
    for file in sorted(files):
        # A zero byte ends the name and the hash has a fixed length, so other trees give other bytes.
        digest.update(f"{file.relative_to(ROOT).as_posix()}\0".encode())
        digest.update(hashlib.blake2b(file.read_bytes()).digest())
    return digest.hexdigest()


def check_identity(expected: Mapping[str, str], user_code: Mapping[str, str]) -> None:
    """Check that this process runs the expected code.

    Args:
        expected: the package's, as `identity` gave it.
        user_code: the user's own, as `own_code` gave it.
    Raises: RunError, which names this machine, if it does not.
    """
    local_code = code_of(user_code)  # one that is not found fails where it is imported, if it is
    others = differences({name: user_code[name] for name in local_code}, local_code)
    for difference, remedy in ((differences(expected, identity()), REMEDY), (others, OWN_REMEDY)):
        if difference:
            raise RunError(f"machine {platform.node()}: {difference}; {remedy}")


REMEDY = "install the same everywhere, or submit the project with `ray job submit --working-dir`"
OWN_REMEDY = "a module of your own is the same file on every machine, and stays as it is while a run goes on"


def differences(expected: Mapping[str, str], other: Mapping[str, str]) -> str:
    """The entries that differ, with both values, for messages; empty if none does.

    Args:
        expected: identity of the launching process's code ("here").
        other: identity of the code on the other machine or in the other process ("there").
    """
    return ", ".join(
        f"{name} {other.get(name, 'unknown')} there, {value} here"
        for name, value in expected.items()
        if other.get(name) != value
    )


def code_of(modules: Iterable[str]) -> dict[str, str]:
    """A hash of each of these modules' files, of those that are found and are no installed package's."""
    files = {module: own_file(module) for module in modules}
    return {module: _file_hash(file) for module, file in files.items() if file is not None}


def texts(value: Any) -> Iterator[str]:
    """All texts in a recipe's dump, or in a part of one."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | Sequence):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from texts(inner)


def own_code(recipe: Recipe) -> dict[str, str]:
    """A hash of each module of the user's own that a recipe names, and of those that these import.

    Texts of the form package.module:Object name a module. Trackers of one's own decide nothing.

    Returns: as `code_of`.

    Raises: RecipeError if one has changed since this process imported it.
    """
    named = texts({**recipe.model_dump(), "results": None})
    files = own_files(text.partition(":")[0] for text in named if ":" in text)
    return {module: _module_hash(module, file) for module, file in files.items()}


def named_files(texts: Iterable[str]) -> dict[str, str]:
    """A hash of each file that a recipe names beside its data, as of weights that a model starts from.

    Args:
        texts: of a recipe; those that end as a file's name does, and are one's, count.
    """
    files = [text for text in texts if Path(text).suffix and path_fault(text) is None]
    return {text: _file_hash(Path(text)) for text in sorted(files) if Path(text).is_file()}


def _module_hash(name: str, file: Path) -> str:
    """The hash of a module's file, which must be what it was when this process asked for the first time."""
    found, spec = _file_hash(file), getattr(sys.modules.get(name), "__spec__", None)
    # importlib.reload makes another spec.
    if spec is not None and _IMPORTED.setdefault(id(spec), (spec, found))[1] != found:
        raise RecipeError(
            f"{shown(name)} has changed since it was imported; expected another process, as a notebook's "
            "kernel that starts again, or importlib.reload"
        )
    return found


def _file_hash(file: Path) -> str:
    return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()


def package_version(package: str) -> str | None:
    """The version that is installed; None if it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
