"""Folders that a user named: locked while one process fills them, and what cannot be written to them.

Beside them the names of files and folders: paths as a user writes them, and safe names made of labels.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from rayfed_kd.errors import RecipeError, nearest, shown
from rayfed_kd.files.whole import LOCK, flush_to_disk, make_folder

# The folder in which Ray unpacks the project for a job that was submitted with --working-dir.
RAYS_COPIES = "working_dir_files"


@contextmanager
def locked_folder(folder: Path, option: str, doing: str, wait_s: float = 0) -> Iterator[None]:
    """Create the folder if needed, and keep other processes out while the block runs.

    Args:
        folder: the folder to lock; the lock is the file `.lock` within it.
        option: the option that names the folder, as results.folder; error messages start with it.
        doing: what another process that holds the lock is doing, as `running`.
        wait_s: seconds to wait for another process.

    Raises:
        RecipeError: another process holds the lock, the folder cannot be written, or it lies in Ray's copy
            of the project, which Ray removes when the job ends.
    """
    _refuse_rays_copy(folder, option)
    with writing(folder, option):
        make_folder(folder)
        try:
            held = FileLock(folder / LOCK).acquire(timeout=wait_s)
        except Timeout:  # an OSError as well
            raise RecipeError(f"{option}: another process is {doing} in {folder}") from None
    with held:
        yield


def _refuse_rays_copy(folder: Path, option: str) -> None:
    if RAYS_COPIES in folder.parts:
        raise RecipeError(
            f"{option}: {folder} lies in Ray's copy of the project, which Ray removes when the job ends; "
            "expected an absolute path on storage that all machines see"
        )


def new_folder(folder: Path, option: str) -> Path:
    """Make a folder that nobody else has: two processes that ask for one name get two folders.

    Args:
        folder: where it is to lie; where there is one already, `-2`, `-3` and so on is added to its name.
        option: the option that could name another, as results.folder; error messages start with it.

    Returns: the folder's path.

    Raises:
        RecipeError: it cannot be made, or lies in Ray's copy of the project.
    """
    _refuse_rays_copy(folder, option)
    path, attempt = folder, 1
    with writing(folder.parent, option):
        make_folder(folder.parent)
        while True:
            # Made, not looked for: between a look and the making another process could take the name.
            with suppress(FileExistsError):
                path.mkdir()
                flush_to_disk(path.parent)
                return path
            attempt += 1
            path = folder.with_name(f"{folder.name}-{attempt}")


@contextmanager
def writing(path: Path, option: str) -> Iterator[None]:
    """Let what goes wrong while the block writes to a place become one message that names the option.

    Args:
        path: the file or folder that the user named.
        option: the option that names it, as --to.

    Raises:
        RecipeError: the operating system did not take what was written.
    """
    try:
        yield
    except OSError as error:
        raise RecipeError(f"{option}: {path} cannot be written ({error})") from None


def no_folder(folder: Path) -> RecipeError:
    """What to say of a folder that is none: a file, or nothing; the nearest beside it is the hint.

    Args:
        folder: as the user named it.
    """
    if folder.is_file():
        return RecipeError(f"{folder} is a file; expected a folder")
    beside = folder.parent
    names = [other.name for other in beside.iterdir() if other.is_dir()] if beside.is_dir() else []
    near = nearest(folder.name, names)
    return RecipeError(f"{folder}: no such folder.", hint=None if near is None else str(beside / near))


MOST_BYTES_IN_NAME = 255  # of a file or folder, on all usual file systems


def path_fault(text: str) -> str | None:
    """Why a text can be no path on this machine, whatever lies there; None if it can.

    Args:
        text: as the user wrote it, perhaps with a `~` at its beginning.
    """
    if not text or "\0" in text:
        return f"{shown(text)} {'has a zero byte' if text else 'is no path'}"
    try:
        longest = max((len(part.encode()) for part in Path(text).parts), default=0)
    except UnicodeEncodeError:
        return f"{shown(text)} is not UTF-8"
    if longest > MOST_BYTES_IN_NAME:
        return f"{shown(text)} has a name of {longest} bytes; expected at most {MOST_BYTES_IN_NAME}"
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        return f"{shown(text)}: there is no such user"
    try:
        path.stat()
    except OSError as error:
        # Others, such as a file that is not there, are no fault of the text.
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            return f"{shown(text)}: {os.strerror(error.errno)}"
    return None


def plain_folder(text: str) -> str:
    """A folder that a user named, with `~` replaced, without `..`, and absolute if it begins with `-`.

    A folder `a/../x` is `x` for us, and none for the operating system as long as there is no `a`. A command
    that we name, as `report -x`, would take `-x` for an option.

    Args:
        text: a path in which `path_fault` finds nothing.
    """
    folder = Path(text).expanduser()
    return str(folder.resolve() if ".." in folder.parts or text.startswith("-") else folder)


def file_name(label: str) -> str:
    """A label as one part of a path: it names a file or folder here, and never one elsewhere.

    Args:
        label: any text.

    Returns: the label with `-` for every run of other characters than letters, digits, `.`, `_` and `-`.
    """
    name = re.sub(r"[^0-9A-Za-z._-]+", "-", label)
    return name if name.strip(".") else f"-{name}"  # "", "." and ".." are the folder itself or its parent
