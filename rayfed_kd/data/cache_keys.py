"""The name of a cache entry: a hash of source, settings and the files' names and content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from filelock import FileLock

from rayfed_kd.data.dataset import Source
from rayfed_kd.errors import DataError
from rayfed_kd.files.whole import atomic_write, file_digest, read_json

FORMAT = 5  # of an entry: part of its key, so that entries of another format are never read
MANY_FILES = 1000  # beyond it files go by path, size and time, not by content


def entry_key(name: str, source: Source, fraction: float, folder: Path) -> str:
    digest = hashlib.blake2b(digest_size=10)
    named = [FORMAT, name, dict(source.settings), float(fraction)]
    # Not `str` of an array, which leaves out the middle of a long one.
    settings = json.dumps(named, sort_keys=True, default=lambda v: getattr(v, "tolist", v.__str__)())
    digest.update(settings.encode())
    # Where a file lies says its class and its part; where all of them lie says nothing.
    paths = [file.absolute().parts for file in source.files]
    start = len([*takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))])
    for path, content in zip(paths, contents(source.files, folder), strict=True):
        digest.update(json.dumps([path[start:], content]).encode())
    return digest.hexdigest()


def contents(files: Sequence[Path], folder: Path) -> list[str]:
    """One fingerprint a file: a hash of its content, remembered by path, size and time.

    Trees of more than a thousand files (CINIC-10 has 270,000) go by path, size and time alone: reading
    them all would cost what the cache saves.
    """
    marks = _marks(files)
    if len(files) > MANY_FILES:
        return marks
    memo = folder / "content-hashes.json"
    with FileLock(folder / ".content-hashes.lock"):
        known: dict[str, str] = read_json(memo)
        missing = [(mark, file) for mark, file in zip(marks, files, strict=True) if mark not in known]
        if missing:
            known |= {mark: file_digest(file) for mark, file in missing}
            atomic_write(memo, json.dumps(known))
    return [known[mark] for mark in marks]


def _marks(files: Sequence[Path]) -> list[str]:
    """Path, size and times of each file, at one `stat` a file.

    The time of the last change of the file's entry is one of them: a program can set the other one back.

    Raises: DataError if one is not there.
    """
    folders = {folder: folder.resolve() for folder in {file.parent for file in files}}
    marks = []
    for file in files:
        try:
            status = file.stat()
        except OSError as error:
            raise DataError(
                f"{file}: cannot be read ({error.strerror}); data.folder or RAYFED_KD_DATA says where it lies"
            ) from None
        times = f"{status.st_mtime_ns}|{status.st_ctime_ns}"
        marks.append(f"{folders[file.parent] / file.name}|{status.st_size}|{times}")
    return marks
