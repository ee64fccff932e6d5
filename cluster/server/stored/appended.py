"""A file that grows: structures with their arrays, each named by its place. What was written never changes.

A reader is told how many bytes count, and their hash. So a kill or a full disk in the middle of an append
harms nothing: what lies beyond those bytes is not looked at.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayfed_kd.files.whole import new_hash

LENGTH_BYTES = 8  # of the number before each entry's header
READ_BYTES = 2**20


class Place(NamedTuple):
    """Where an entry lies in the file, in bytes."""

    offset: int
    length: int


class AppendedFile:
    """Appends entries to a file of this process's own.

    Args:
        path: the file. It is created by the first `append`, and must not be there before.

    Attributes:
        size: bytes until now, those that are not flushed yet as well.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, 0
        self._hash = new_hash()
        self._file: BinaryIO | None = None

    def append(self, structure: Any, arrays: Sequence[NDArray[Any]]) -> Place:
        """Append an entry.

        Args:
            structure: what `json.dumps` takes.
            arrays: of plain numbers, of any shape.

        Returns: its place, for `read_entry`.

        Raises:
            OSError: the disk does not take it.
        """
        facts = [[array.dtype.str, array.shape] for array in arrays]
        header = json.dumps([structure, facts]).encode("utf8")
        start = self.size
        self._write(len(header).to_bytes(LENGTH_BYTES, "little") + header)
        for array in arrays:
            # As bytes, as a buffer of some dtypes is none that a file takes.
            self._write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return Place(start, self.size - start)

    def flush(self) -> dict[str, Any] | None:
        """Bring the file to disk. Its name is durable only when the caller has flushed the folder.

        Returns: the facts for `appended_fault`, as JSON has them; None if nothing was appended yet.

        Raises:
            OSError: the disk does not take it.
        """
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
        if not self.size:
            return None
        return {"name": self.path.name, "bytes": self.size, "blake2b": self._hash.hexdigest()}

    def abandon(self, length: int) -> None:
        """Close the file and cut it off, as far as the disk lets; nothing may be appended after it.

        Args:
            length: bytes that stay; 0: no file.
        """
        with suppress(OSError):
            if self._file is not None:
                self._file.close()
        with suppress(OSError):
            if length:
                os.truncate(self.path, length)
            elif self.size:
                self.path.unlink(missing_ok=True)

    def _write(self, content: bytes | memoryview) -> None:
        if self._file is None:
            self._file = self.path.open("ab" if self.size else "xb")
        # Before the write: after a failed one `abandon` sees that there is a file.
        self.size += len(content)
        self._hash.update(content)
        self._file.write(content)


def read_entry(file: BinaryIO, place: Sequence[int]) -> tuple[Any, list[NDArray[Any]]]:
    """An entry's structure and arrays.

    Args:
        file: opened for reading, of whose bytes `appended_fault` found nothing.
        place: as `append` returned it.
    """
    offset, length = place
    file.seek(offset)
    content = file.read(length)
    start = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    structure, facts = json.loads(content[LENGTH_BYTES:start])
    arrays = []
    for name, shape in facts:
        kind = np.dtype(name)
        count = math.prod(shape)
        # A copy: aligned, and it does not hold the whole entry in memory.
        arrays.append(np.frombuffer(content, kind, count, start).reshape(shape).copy())
        start += count * kind.itemsize
    return structure, arrays


def appended_fault(path: Path, facts: dict[str, Any]) -> str | None:
    """Why the bytes that count cannot be used; None if they can.

    Args:
        path: the file.
        facts: as `flush` returned them. The file may have grown since.

    Raises:
        OSError: it cannot be read.
        KeyError: the facts lack something.
    """
    size, digest, left = path.stat().st_size, new_hash(), facts["bytes"]
    if size < left:
        return f"{path.name} has {size} of {left} bytes"
    with path.open("rb") as file:
        while left and (content := file.read(min(left, READ_BYTES))):
            digest.update(content)
            left -= len(content)
    return None if digest.hexdigest() == facts["blake2b"] else f"{path.name} has another checksum"
