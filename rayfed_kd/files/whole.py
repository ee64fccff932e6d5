"""Files and folders that are whole or not there: after a kill or a power cut the old content is, or the new.

Every file that the project writes goes through `atomic_write`, or through `written_aside` where a library
wants a path to write to. Four kinds of files grow in place. Two are log.txt and TensorBoard's event files,
which are read line by line or record by record, and in which nothing that a run needs stands alone. One are
checkpoints' logs of client states: a checkpoint's note says how many of their bytes count, and the hash. One
are the tables of a run that goes on, whose batches have checksums. They reach the disk within a second, or
before a checkpoint that counts on them.

Read back, damage is one message that names the file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rayfed_kd.errors import DataError, shortened

LOCK = ".lock"  # the file that `locked_folder` locks
# Names of unfinished files start with this. The dot hides them from Arrow, which reads a folder as one table.
UNFINISHED_PREFIX = ".part-"


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, if they are not there; their names are then on disk.

    Without that a power cut may take a folder with all that was brought to disk in it.

    Args:
        folder: the folder.

    Raises:
        OSError: it cannot be made.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        flush_to_disk(folder.parent)


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

    For libraries that write to a path themselves, as Arrow and matplotlib do. If the block
    raises, the unfinished file is removed and `path` is untouched.

    Args:
        path: the file to write; its folder exists.

    Yields: an empty file's path, with the same suffix as `path`, so that a library picks the same format.

    Raises:
        OSError: the disk does not take the file.
    """
    aside = _unfinished(path)
    # 0o666 less the umask, as any file that `open` makes; a file of tempfile's would be its owner's alone.
    os.close(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield aside
        # The order matters: content, then name, then the folder that holds the name.
        flush_to_disk(aside)
        aside.replace(path)
    except BaseException:
        # BaseException, because Ctrl-C, too, must leave no unfinished file.
        aside.unlink(missing_ok=True)
        raise
    flush_to_disk(path.parent)


@contextmanager
def folder_written_aside(folder: Path) -> Iterator[Path]:
    """Let the block fill another folder beside, and rename it to `folder` when the block ends.

    A folder that was there is removed first: a kill at that moment leaves none, never half of one. If the
    block raises, the unfinished folder is removed and `folder` is untouched.

    Args:
        folder: the folder to make, of plain files; the folder that holds it exists.

    Yields: the empty folder to fill.

    Raises:
        OSError: the disk does not take it.
    """
    aside = _unfinished(folder)
    try:
        aside.mkdir()
        yield aside
        flush_folder(aside)
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    flush_to_disk(folder.parent)


def remove_unfinished(folder: Path, name: str | None = None) -> None:
    """Remove the files and folders that a killed process left unfinished in a folder.

    Only for what no other process writes: its unfinished files would be removed, too.

    Args:
        folder: the folder; its other subfolders are left alone.
        name: of the file or folder that was being written; None: all.
    """
    for aside in folder.glob(f"{UNFINISHED_PREFIX}*"):
        if name is None or aside.name.split("-", 2)[2:] == [name]:
            _remove(aside)


def empty_folder(folder: Path) -> None:
    """Remove all that lies in a folder but its lock, which the caller holds.

    Args:
        folder: as `locked_folder` made it.
    """
    for path in folder.iterdir():
        if path.name != LOCK:
            _remove(path)


def write_json(path: Path, content: Any) -> None:
    """Write JSON with `atomic_write`, indented by two spaces.

    Args:
        path: the file; its folder exists.
        content: what `json.dumps` takes.

    Raises:
        OSError: the disk does not take the file.
    """
    atomic_write(path, json.dumps(content, indent=2) + "\n")


def write_parquet(path: Path, table: Any) -> None:
    """Write a table as Parquet, whole or not at all.

    Args:
        path: the file; its folder exists.
        table: a pyarrow.Table.

    Raises:
        OSError: the disk does not take the file.
    """
    import pyarrow.parquet as pq

    with written_aside(path) as aside:
        pq.write_table(table, aside)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _unfinished(path: Path) -> Path:
    """The name of `path` until it is whole.

    It is random: two processes that write the same file never share one, and nobody can put a link there.
    """
    return path.with_name(f"{UNFINISHED_PREFIX}{secrets.token_hex(8)}-{path.name}")


def flush_folder(folder: Path) -> None:
    """fsync of a folder of plain files, and of each of them.

    Args:
        folder: the folder.

    Raises:
        OSError: the disk does not take it.
    """
    for path in folder.iterdir():
        flush_to_disk(path)
    flush_to_disk(folder)


def flush_to_disk(path: Path) -> None:
    """fsync of a file or folder; Windows opens no folder."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot flush a folder and say EINVAL; a file's content must be flushed.
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def new_hash(content: bytes = b"") -> Any:
    """The hash by which files are known, BLAKE2b of 16 bytes, of what is known of the content so far."""
    return hashlib.blake2b(content, digest_size=16)


def file_digest(path: Path) -> str:
    """The hash of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, new_hash).hexdigest()


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
    # An OSError as well, but no damage: `read_table` then lists the folder again.
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path} is damaged: {shortened(reason.rstrip(': '), 300)}") from None
