"""A folder of its own for a run or a search: made, and kept from other processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
