"""A partition's file: one row a sample, read with every doubt that a file of somebody else's deserves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayfed_kd.errors import DataError, shortened
from rayfed_kd.files.whole import write_parquet

Array = np.ndarray[Any, Any]
SPLITS = ("train", "test", "public")
TRAIN, TEST, PUBLIC = range(3)
NOBODY = -1


@dataclass(frozen=True)
class PartitionRows:
    """A partition's file: client, split, sample, each [rows]; `meta` is empty if it is not `save`'s."""

    client: Array
    split: Array
    sample: Array
    meta: Mapping[str, Any]

    @property
    def clients(self) -> Any:
        """K; unchecked as long as `_client_fault` has not seen it."""
        return self.meta.get("clients", int(self.client.max(initial=-1)) + 1)

    def digest(self) -> str:
        """Of all that `load` builds on."""
        facts = json.dumps([self.clients, self.meta.get("origin")], sort_keys=True)
        digest = hashlib.blake2b(facts.encode(), digest_size=16)
        for column in (self.client, self.split, self.sample):
            digest.update(column.astype(np.int64).tobytes())
        return digest.hexdigest()

    def write(self, path: Path) -> None:
        """Write the rows as Parquet, with the metadata and a digest of both."""
        split = pa.DictionaryArray.from_arrays(self.split.astype(np.int8), list(SPLITS))
        table = pa.table(
            {"client": self.client.astype(np.int32), "split": split, "sample": self.sample},
            metadata={"rayfed_kd": json.dumps({**self.meta, "digest": self.digest()})},
        )
        write_parquet(path, table)


def read_rows(path: Path, num_samples: int) -> PartitionRows:
    """Read the rows that `PartitionRows.write` wrote, or any Parquet file with its columns.

    Args:
        path: the file.
        num_samples: training samples of the data set that the rows count.

    Raises: DataError naming the file and the fault.
    """
    rows = _read(path)
    fault = _sample_fault(rows, num_samples) or _client_fault(rows, num_samples)
    fault = fault or _meta_fault(rows, num_samples)
    if fault:
        raise DataError(f"partition.file: {path} {fault}")
    return rows


def _read(path: Path) -> PartitionRows:
    try:
        table = pq.read_table(path)
        client, sample = (_whole(table.column(name)) for name in ("client", "sample"))
        split = table.column("split").cast(pa.string())
        meta = json.loads((table.schema.metadata or {}).get(b"rayfed_kd", b"{}"))
    except (pa.ArrowException, OSError, KeyError, ValueError, RecursionError) as error:
        reason = shortened((str(error).splitlines() or [type(error).__name__])[0], 200)
        raise DataError(
            f"partition.file: {path} is no saved partition; expected Parquet with columns client, split, "
            f"sample ({reason})"
        ) from None
    # By Arrow: an array of Python strings would take a loop over all rows.
    if unknown := set(split.unique().to_pylist()) - set(SPLITS):
        raise DataError(
            f"partition.file: {path} has split {min(map(repr, unknown))}, "
            "expected 'train', 'test' or 'public'"
        )
    if not (isinstance(meta, dict) and isinstance(meta.get("origin", {}), dict)):
        raise DataError(f"partition.file: {path} is no saved partition; its metadata is no mapping")
    codes = pc.index_in(split, value_set=pa.array(SPLITS)).cast(pa.int64()).to_numpy()
    return PartitionRows(client, codes, sample, meta)


def _whole(column: pa.ChunkedArray) -> Array:
    if column.null_count:
        raise ValueError(f"{column.null_count} rows are empty")
    return np.asarray(column.cast(pa.int64()).to_numpy())


def _sample_fault(rows: PartitionRows, num_samples: int) -> str | None:
    sample = rows.sample
    if not len(sample):
        return "has no samples"
    if sample.min() < 0 or sample.max() >= num_samples:
        return f"has samples {sample.min()} to {sample.max()}, the data has 0 to {num_samples - 1}"
    parts = [sample]
    if "shared" in rows.meta.get("origin", {}):
        # What `sharing` made: a public sample may be a training sample of a client's as well.
        parts = [sample[rows.split != TRAIN], sample[rows.split != PUBLIC]]
    if any(len(np.unique(part)) != len(part) for part in parts):
        return "gives a sample to two clients or parts"
    return None


def _client_fault(rows: PartitionRows, num_samples: int) -> str | None:
    client, clients = rows.client[rows.split != PUBLIC], rows.clients
    # No more clients than samples are ever drawn: a damaged count must not become memory.
    if not isinstance(clients, int) or not 1 <= clients <= num_samples:
        return f"names {clients} clients, expected 1 to {num_samples}, the number of samples"
    if (rows.client[rows.split == PUBLIC] != NOBODY).any():
        return f"gives public samples to clients, expected {NOBODY}"
    if not len(client):
        return "has public samples alone"
    if client.min() < 0 or client.max() >= clients:
        return f"has clients {client.min()} to {client.max()}, expected 0 to {clients - 1}"
    if not rows.meta and len(missing := np.setdiff1d(np.arange(clients), client)):
        return f"has clients 0 to {clients - 1}, but client {missing[0]} has no samples"
    return None


def _meta_fault(rows: PartitionRows, num_samples: int) -> str | None:
    if rows.meta.get("digest", rows.digest()) != rows.digest():
        return "is damaged: it is not what was saved"
    drawn_over = rows.meta.get("origin", {}).get("samples", num_samples)
    if drawn_over != num_samples:
        return f"was drawn over {drawn_over} samples, the data has {num_samples}"
    return None
