"""Files and folders on disk: whole files, locked folders, safe names.

Use `atomic_write` for every file that a later run, a report or a resumed run reads. Use `written_aside` for a
library that wants a path to write to, and `locked_folder` for a folder that one process at a time may fill.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rayfed_kd.errors import DataError, RecipeError, shortened, shown

# The folder in which Ray unpacks the project for a job that was submitted with --working-dir.
RAYS_COPIES = "working_dir_files"
MOST_BYTES_IN_NAME = 255  # of a file or folder, on all usual file systems
# Names of unfinished files start with this. The dot hides them from Arrow, which reads a folder as one table.
UNFINISHED_PREFIX = ".part-"


@contextmanager
def locked_folder(folder: Path, option: str, doing: str) -> Iterator[None]:
    """Create the folder if needed, and keep other processes out while the block runs.

    Args:
        folder: the folder to lock; the lock is the file `.lock` within it.
        option: the option that names the folder, as results.folder; error messages start with it.
        doing: what another process that holds the lock is doing, as `running`.

    Raises:
        RecipeError: another process holds the lock, the folder cannot be written, or it lies in Ray's copy
            of the project, which Ray removes when the job ends.
    """
    if RAYS_COPIES in folder.parts:
        raise RecipeError(
            f"{option}: {folder} lies in Ray's copy of the project, which Ray removes when the job ends; "
            "expected an absolute path on storage that all machines see"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise RecipeError(f"{option}: another process is {doing} in {folder}") from None
    except OSError as error:
        raise unwritable_folder(folder, option, error) from None
    try:
        yield
    finally:
        lock.release()


def unwritable_folder(folder: Path, option: str, error: OSError) -> RecipeError:
    """The error for a folder that cannot be written, with the operating system's reason.

    Args:
        folder: the folder.
        option: the option that names it, as results.folder.
        error: what the operating system said.

    Returns: the error, to be raised by the caller.
    """
    return RecipeError(f"{option}: {folder} cannot be written ({error})")


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
        raise unwritable_folder(path, option, error) from None


def path_fault(text: str) -> str | None:
    """Why a text can be no path on this machine, whatever lies there; None if it can.

    Args:
        text: as the user wrote it, perhaps with a `~` at its beginning.
    """
    if "\0" in text:
        return f"{shown(text)} has a zero byte"
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
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            return f"{shown(text)}: {os.strerror(error.errno)}"
    return None


def plain_folder(text: str) -> str:
    """A folder that a user named, with `~` replaced and without `..`.

    A folder `a/../x` is `x` for us, and none for the operating system as long as there is no `a`.

    Args:
        text: a path in which `path_fault` finds nothing.
    """
    folder = Path(text).expanduser()
    return str(folder.resolve() if ".." in folder.parts else folder)


def read_json(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file.

    Args:
        path: a file that this project wrote.

    Returns: the mapping; empty if there is no such file, as of a run that was killed.

    Raises:
        DataError: the file is damaged.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf8"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise DataError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} is damaged: expected a mapping, it holds a {type(content).__name__}")
    return content


def read_parquet(path: Path) -> Any:
    """The table in a Parquet file that this project wrote.

    Returns: a pyarrow.Table.

    Raises:
        DataError: the file is damaged.
        FileNotFoundError: there is no such file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path} is damaged: {shortened(reason.rstrip(': '), 300)}") from None


def atomic_write(path: Path, content: str | bytes) -> None:
    """Write a whole file: after a crash or a power cut the old content is there, or the new one.

    Args:
        path: the file; its folder exists.
        content: text, written as UTF-8, or bytes.

    Raises:
        OSError: the disk does not take the file; what was there before is untouched.
    """
    with written_aside(path) as aside:
        aside.write_bytes(content.encode("utf8") if isinstance(content, str) else content)


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Let the block write another file in the same folder, and rename it to `path` when the block ends.

    For libraries that write to a path themselves, as Arrow, matplotlib and safetensors do. If the block
    raises, the unfinished file is removed and `path` is untouched.

    Args:
        path: the file to write; its folder exists.

    Yields: an empty file's path, with the same suffix as `path`, so that a library picks the same format.

    Raises:
        OSError: the disk does not take the file.
    """
    # A random name: two processes that write the same file never share one, and nobody can put a link there.
    aside = path.with_name(f"{UNFINISHED_PREFIX}{secrets.token_hex(8)}-{path.name}")
    os.close(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield aside
        # The order matters: content, then name, then the folder that holds the name.
        _flush_to_disk(aside)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    _flush_to_disk(path.parent)


def remove_unfinished(folder: Path) -> None:
    """Remove the files that a killed process left unfinished in a folder.

    Only for a folder that no other process writes to: its unfinished files would be removed, too.

    Args:
        folder: the folder; its subfolders are left alone.
    """
    for aside in folder.glob(f"{UNFINISHED_PREFIX}*"):
        aside.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write JSON with `atomic_write`, indented by two spaces.

    Args:
        path: the file; its folder exists.
        content: what `json.dumps` takes.

    Raises:
        OSError: the disk does not take the file.
    """
    atomic_write(path, json.dumps(content, indent=2) + "\n")


def file_name(label: str) -> str:
    """A label as one part of a path: it names a file or folder here, and never one elsewhere.

    Args:
        label: any text.

    Returns: the label with `-` for every run of other characters than letters, digits, `.`, `_` and `-`.
    """
    name = re.sub(r"[^0-9A-Za-z._-]+", "-", label)
    return name if name.strip(".") else f"-{name}"  # "", "." and ".." are the folder itself or its parent


def folder_name(label: str) -> str:
    """A label as the name of one folder that people read: as it is, but for what would lead elsewhere.

    Args:
        label: any text, as `FedKF (oca)`; blanks and brackets stay, unlike in `file_name`.

    Returns: the label with `-` for separators of paths and control characters.
    """
    name = re.sub(r"[/\\\x00-\x1f\x7f]", "-", label)
    return name if name.strip(".") else f"-{name}"


def _flush_to_disk(path: Path) -> None:
    """fsync of a file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot flush a folder and say EINVAL; a file's content must be flushed.
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(descriptor)
