"""Who holds what: training and test parts per client, drawn, saved and read again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayfed_kd.data.schemes import Pool
from rayfed_kd.errors import DataError, RecipeError, shortened
from rayfed_kd.files import written_aside
from rayfed_kd.recipe.registry import blaming, load_function, options_model
from rayfed_kd.recipe.roles import PARTITION_SCHEME
from rayfed_kd.recipe.validation import validate

__all__ = ["SCHEMES", "Partition", "Pool", "make_partition"]

Array = np.ndarray[Any, Any]
SPLITS = ("train", "test", "public")
TRAIN, TEST, PUBLIC = range(3)
NOBODY = -1

SCHEMES = {
    name: f"rayfed_kd.data.schemes:{name}"
    for name in ("iid", "dirichlet", "dirichlet_client", "dirichlet_fedkf", "classes", "quantity", "natural")
}


@dataclass(frozen=True)
class Partition:
    """Ascending sample indices per client.

    Attributes:
        train: K arrays, what clients train on.
        test: K arrays, each client's own test part; empty where the official test set is used.
        origin: how it was drawn, for people.
        public: what server and clients all have; empty where there is no such. No client holds it, or all of
            it is from clients' training samples (`sharing`).
    """

    train: tuple[Array, ...]
    test: tuple[Array, ...]
    origin: Mapping[str, Any]
    public: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def sizes(self) -> Array:
        """[K] int64, training samples of every client."""
        return np.array([len(part) for part in self.train], dtype=np.int64)

    def counts(self, labels: Array, classes: int) -> Array:
        """Count every client's samples of each class, training and test together.

        Args:
            labels: [n] int64, of all training samples of the data set.
            classes: number of classes.
        Returns: [K, classes] int64.
        """
        parts = [np.concatenate(pair) for pair in zip(self.train, self.test, strict=True)]
        return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])

    def save(self, path: Path) -> None:
        """Writes client (-1: nobody's), split, sample: one row a sample, two if public and a client's."""
        nobody = np.full(len(self.public), NOBODY)
        rows = _Rows(
            np.concatenate([_owners(self.train), _owners(self.test), nobody]),
            np.repeat([TRAIN, TEST, PUBLIC], [_total(self.train), _total(self.test), len(self.public)]),
            np.concatenate([*self.train, *self.test, self.public]).astype(np.int64),
            {"clients": len(self.train), "origin": dict(self.origin)},
        )
        split = pa.DictionaryArray.from_arrays(rows.split.astype(np.int8), list(SPLITS))
        table = pa.table(
            {"client": rows.client.astype(np.int32), "split": split, "sample": rows.sample},
            metadata={"rayfed_kd": json.dumps({**rows.meta, "digest": rows.digest()})},
        )
        with written_aside(path) as aside:
            pq.write_table(table, aside)

    @classmethod
    def load(cls, path: Path, num_samples: int) -> Partition:
        """Read what `save` wrote, or any Parquet file with its columns.

        Without `save`'s metadata the clients are those that have samples, and must be 0 to K - 1.

        Args:
            path: of the file.
            num_samples: training samples of the data set; a partition of another data set is refused.
        Raises: DataError naming the file and the fault.
        """
        if not path.is_file():
            raise DataError(f"partition.file: {path} does not exist")
        rows = _read(path)
        fault = _sample_fault(rows, num_samples) or _client_fault(rows, num_samples)
        fault = fault or _meta_fault(rows, num_samples)
        if fault:
            raise DataError(f"partition.file: {path} {fault}")

        def parts(chosen: Array) -> tuple[Array, ...]:
            owners, samples = rows.client[chosen], rows.sample[chosen]
            order = np.lexsort((samples, owners))
            ends = np.cumsum(np.bincount(owners, minlength=rows.clients))[:-1]
            return tuple(np.split(samples[order], ends))

        public = np.sort(rows.sample[rows.split == PUBLIC])
        held = [parts(rows.split == split) for split in (TRAIN, TEST)]
        return cls(held[0], held[1], rows.meta.get("origin", {}), public)

    def beside(self, public: Array, private: Array, keep: int | None = None) -> Partition:
        """A partition of `private` samples, drawn as if there were no others, beside a public set.

        Args:
            public: sample indices, in the order that they were drawn.
            private: ascending; what this partition's indices count.
            keep: how many of the public ones are used, the first; None: all.
        """
        origin = {**self.origin, "samples": len(public) + len(private), "public": len(public)}
        parts = [tuple(private[part] for part in held) for held in (self.train, self.test)]
        return replace(self, train=parts[0], test=parts[1], origin=origin, public=np.sort(public[:keep]))

    def sharing(self, count: int, keep: int | None, stream: np.random.Generator) -> Partition:
        """The same partition with a public set of the clients' own training samples.

        Args:
            count: how many are drawn.
            keep: how many of these are used; None: all.
            stream: decides which.
        Raises: RecipeError if the clients have fewer.
        """
        held = np.sort(np.concatenate(self.train))
        if count > len(held):
            raise RecipeError(f"partition.public.count = {count}: the clients train on {len(held)} samples")
        drawn = stream.permutation(held)[:count]
        return replace(self, public=np.sort(drawn[:keep]), origin={**self.origin, "shared": count})


def draw_public(total: int, count: int, stream: np.random.Generator) -> tuple[Array, Array]:
    """Draw the public set.

    Args:
        total: number of training samples.
        count: number of public samples.
        stream: decides which.
    Returns: the public samples' indices in the order drawn, and the others', ascending.
    """
    order = stream.permutation(total)
    return order[:count], np.sort(order[count:])


def make_partition(
    pool: Pool,
    clients: int,
    scheme: str,
    options: Mapping[str, Any],
    stream: np.random.Generator,
    *,
    test: Literal["local", "official"] = "local",
    test_fraction: float = 0.2,
) -> Partition:
    """Draws a partition.

    Args:
        scheme: a registered name or package.module:Object.
        options: the scheme's own.
        test: "local" keeps `test_fraction` of each client's samples for its test, "official" none.
    Raises: RecipeError if it cannot be made.
    """
    total = len(pool.labels)
    if clients > total:
        raise RecipeError(f"partition.clients = {clients}: there are {total} training samples")
    function = load_function(scheme, SCHEMES, PARTITION_SCHEME, "partition.name")
    checked = validate(options_model(function), dict(options), "partition", scheme)
    arguments = {key: getattr(checked, key) for key in type(checked).model_fields}
    with blaming(f"partition.name: {scheme}"):
        drawn = list(function(pool, clients, stream, **arguments))
    parts = _checked(drawn, clients, total, scheme)
    origin = {"scheme": scheme, "options": dict(options), "test": test, "samples": total}
    if test == "official":
        return Partition(tuple(parts), tuple(np.zeros(0, dtype=np.int64) for _ in parts), origin)
    halves = [_halved(part, test_fraction, stream) for part in parts]
    return Partition(tuple(train for train, _ in halves), tuple(held for _, held in halves), origin)


def _halved(part: Array, fraction: float, stream: np.random.Generator) -> tuple[Array, Array]:
    """Training and test part; whoever has a sample keeps at least one to train on."""
    shuffled = stream.permutation(part)
    held = min(round(fraction * len(part)), max(len(part) - 1, 0))
    return np.sort(shuffled[held:]), np.sort(shuffled[:held])


def _checked(drawn: Any, clients: int, total: int, scheme: str) -> list[Array]:
    """What a scheme gave, ascending; somebody's own scheme may be wrong."""
    parts = [np.sort(np.asarray(part)) for part in drawn]
    if len(parts) != clients:
        raise RecipeError(f"partition.name = {scheme!r}: it gave {len(parts)} clients, expected {clients}")
    for client, part in enumerate(parts):
        if len(part) and (part.dtype.kind not in "iu" or part[0] < 0 or part[-1] >= total):
            raise RecipeError(
                f"partition.name = {scheme!r}: client {client} has {part[0]} to {part[-1]} ({part.dtype}), "
                f"expected sample indices from 0 to {total - 1}"
            )
    held = np.bincount(np.concatenate(parts).astype(np.int64), minlength=total)
    if held.max() > 1:
        raise RecipeError(
            f"partition.name = {scheme!r}: sample {held.argmax()} is given {held.max()} times, expected once"
        )
    return [part.astype(np.int64) for part in parts]


@dataclass(frozen=True)
class _Rows:
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


def _read(path: Path) -> _Rows:
    try:
        table = pq.read_table(path)
        client, sample = (_whole(table.column(name)) for name in ("client", "sample"))
        split = table.column("split").cast(pa.string()).to_numpy()
        meta = json.loads((table.schema.metadata or {}).get(b"rayfed_kd", b"{}"))
    except (pa.ArrowException, OSError, KeyError, ValueError, RecursionError) as error:
        reason = shortened((str(error).splitlines() or [type(error).__name__])[0], 200)
        raise DataError(
            f"partition.file: {path} is no saved partition; expected Parquet with columns client, split, "
            f"sample ({reason})"
        ) from None
    if unknown := set(split) - set(SPLITS):
        raise DataError(
            f"partition.file: {path} has split {min(map(repr, unknown))}, "
            "expected 'train', 'test' or 'public'"
        )
    if not (isinstance(meta, dict) and isinstance(meta.get("origin", {}), dict)):
        raise DataError(f"partition.file: {path} is no saved partition; its metadata is no mapping")
    codes = np.select([split == name for name in SPLITS], range(len(SPLITS)))
    return _Rows(client, codes, sample, meta)


def _whole(column: pa.ChunkedArray) -> Array:
    if column.null_count:
        raise ValueError(f"{column.null_count} rows are empty")
    whole: Array = column.cast(pa.int64()).to_numpy()
    return whole


def _sample_fault(rows: _Rows, num_samples: int) -> str | None:
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


def _client_fault(rows: _Rows, num_samples: int) -> str | None:
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


def _meta_fault(rows: _Rows, num_samples: int) -> str | None:
    if rows.meta.get("digest", rows.digest()) != rows.digest():
        return "is damaged: it is not what was saved"
    drawn_over = rows.meta.get("origin", {}).get("samples", num_samples)
    if drawn_over != num_samples:
        return f"was drawn over {drawn_over} samples, the data has {num_samples}"
    return None


def _owners(parts: Sequence[Array]) -> Array:
    return np.repeat(np.arange(len(parts)), [len(part) for part in parts])


def _total(parts: Sequence[Array]) -> int:
    return sum(len(part) for part in parts)
