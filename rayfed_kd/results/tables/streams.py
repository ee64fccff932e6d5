"""One table as an Arrow IPC stream that grows by a batch of rows a round."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from rayfed_kd.errors import DataError
from rayfed_kd.files.whole import written_aside

STREAM = "_rows.arrows"  # the underscore hides it from Arrow, which reads a folder of files as one table
CHECKSUM = b"crc32"


class Stream:
    """Appends batches to a new stream.

    Args:
        path: of the stream. One that is there is replaced when the first batches are on disk.
        schema: the table's.
        begin: batches that it begins with.
    """

    def __init__(self, path: Path, schema: pa.Schema, begin: Iterable[pa.RecordBatch] = ()) -> None:
        with written_aside(path) as aside:
            # It stays open for the batches to come; only its name changes.
            self._file = aside.open("wb")
            self._writer = pa.ipc.new_stream(self._file, schema)
            for batch in begin:
                self._write(batch)
            self._file.flush()

    def append(self, batch: pa.RecordBatch) -> None:
        """Append a batch: from then on readers find it, also after a kill of this process.

        Raises: OSError if the disk does not take it.
        """
        self._write(batch)
        self._file.flush()

    def _write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch, custom_metadata={CHECKSUM: _checksum(batch)})

    def sync(self) -> None:
        """Bring the batches so far to disk; may be called from another thread.

        Raises: OSError if the disk does not take them.
        """
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file, whose rows are elsewhere now."""
        with suppress(OSError):  # a full disk refuses again what it has refused to `append`
            self._file.close()


def stream_batches(path: Path, until_round: int | None = None) -> Iterator[pa.RecordBatch]:
    """The whole batches of a stream, which may grow meanwhile; each has rows of one round.

    Args:
        path: of the stream.
        until_round: later rounds are not given, and damage after it is not told.

    Raises:
        FileNotFoundError: there is no such stream.
        DataError: the stream is damaged before its end.
    """
    last = 0
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            reader = pa.ipc.open_stream(file)
            while True:
                batch, custom = reader.read_next_batch_with_custom_metadata()
                if (custom or {}).get(CHECKSUM) != _checksum(batch):
                    fault = "its checksum is another"
                    break
                last = batch["round"][0].as_py()
                if until_round is not None and last > until_round:
                    return
                yield batch
        except (StopIteration, pa.ArrowInvalid, OSError) as error:
            # At the end: no more batches, or one that the writer is at, or was killed at.
            if file.tell() >= size:
                return
            fault = str(error) or "it ends early"
    if until_round is None:
        raise DataError(f"{path} is damaged after round {last}: {fault}")


def _checksum(batch: pa.RecordBatch) -> bytes:
    """Arrow has none of its own, and a power cut may leave zeros in the place of numbers."""
    return b"%08x" % zlib.crc32(batch.serialize())
