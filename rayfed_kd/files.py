"""Files and folders: a folder kept from other processes, files written aside and renamed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rayfed_kd.errors import RecipeError

# Where a job that was submitted with --working-dir runs.
RAYS_COPIES = "working_dir_files"


@contextmanager
def locked_folder(folder: Path, option: str, doing: str) -> Iterator[None]:
    """Makes the folder if it is not there, and keeps other processes out.

    Args:
        option: which option names it, as results.folder.
        doing: what another process would be doing there, as running.
    Raises: RecipeError if another process has it, the disk does not take it, or Ray would remove it.
    """
    if RAYS_COPIES in folder.parts:
        raise RecipeError(
            f"{option}: {folder} lies in Ray's copy of the project, which does not stay; expected an "
            "absolute path on storage that all machines see"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise RecipeError(f"{option}: another process is {doing} in {folder}") from None
    except OSError as error:
        raise unwritable(folder, option, error) from None
    try:
        yield
    finally:
        lock.release()


def unwritable(folder: Path, option: str, error: OSError) -> RecipeError:
    """What is told of a folder that the disk does not take."""
    return RecipeError(f"{option}: {folder} cannot be written ({error})")


def write_json(path: Path, content: Any) -> None:
    """As `write_text`."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes aside, flushes to disk, renames: a crash leaves the old file or the new one."""
    aside = path.with_name(f".{path.name}.part")
    with aside.open("w", encoding="utf8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    aside.replace(path)


def file_name(label: str) -> str:
    """A label as part of a path."""
    return re.sub(r"[^0-9A-Za-z._-]+", "-", label)
