"""Who holds what: training and test parts per client, drawn, saved and read again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rayfed_kd.data.client_parts import ClientParts
from rayfed_kd.data.partition_file import NOBODY, PUBLIC, TEST, TRAIN, PartitionRows, read_rows
from rayfed_kd.data.schemes import Pool
from rayfed_kd.data.schemes_of_source import Division
from rayfed_kd.errors import DataError, RecipeError
from rayfed_kd.recipe.registry import Registry, blaming, in_modules
from rayfed_kd.recipe.roles import PARTITION_SCHEME
from rayfed_kd.recipe.sections.data import PartitionRecipe

__all__ = ["SCHEMES", "Division", "Partition", "Pool", "make_partition"]

Array = np.ndarray[Any, Any]

SCHEMES = Registry(
    in_modules(
        "rayfed_kd.data",
        schemes="iid dirichlet dirichlet_client dirichlet_fedkf classes quantity",
        schemes_of_source="natural by_column from_source",
    ),
    role=PARTITION_SCHEME,
)


@dataclass(frozen=True)
class Partition:
    """Ascending sample indices per client.

    Attributes:
        train: K arrays, what clients train on; any sequence of arrays becomes `ClientParts`.
        test: K arrays, each client's own test part; empty where the official test set is used.
        origin: how it was drawn, for people.
        public: what server and clients all have; empty where there is no such. No client holds it, or all of
            it is from clients' training samples (`sharing`).
    """

    train: ClientParts
    test: ClientParts
    origin: Mapping[str, Any]
    public: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def sizes(self) -> Array:
        """[K] int64, training samples of every client."""
        return self.train.sizes

    def counts(self, labels: Array, classes: int) -> Array:
        """Count every client's samples of each class, training and test together.

        Args:
            labels: [n] int64, of all training samples of the data set.
            classes: number of classes.
        Returns: [K, classes] int64.
        """
        cells = np.zeros(len(self.train) * classes, dtype=np.int64)
        for parts in (self.train, self.test):
            cells += np.bincount(parts.owners * classes + labels[parts.indices], minlength=len(cells))
        return cells.reshape(-1, classes)

    def save(self, path: Path) -> None:
        """Writes client (-1: nobody's), split, sample: one row a sample, two if public and a client's."""
        nobody, sets = np.full(len(self.public), NOBODY), (self.train.indices, self.test.indices, self.public)
        rows = PartitionRows(
            np.concatenate([self.train.owners, self.test.owners, nobody]),
            np.repeat([TRAIN, TEST, PUBLIC], [len(samples) for samples in sets]),
            np.concatenate(sets).astype(np.int64),
            {"clients": len(self.train), "origin": dict(self.origin)},
        )
        rows.write(path)

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
        rows = read_rows(path, num_samples)

        def parts(chosen: Array) -> ClientParts:
            return ClientParts.owned(rows.client[chosen], rows.sample[chosen], rows.clients)

        public = np.sort(rows.sample[rows.split == PUBLIC])
        return cls(parts(rows.split == TRAIN), parts(rows.split == TEST), rows.meta.get("origin", {}), public)

    def beside(self, public: Array, private: Array, keep: int | None = None) -> Partition:
        """A partition of `private` samples, drawn as if there were no others, beside a public set.

        Args:
            public: sample indices, in the order that they were drawn.
            private: ascending; what this partition's indices count.
            keep: how many of the public ones are used, the first; None: all.
        """
        origin = {**self.origin, "samples": len(public) + len(private), "public": len(public)}
        parts = [ClientParts(private[part.indices], part.offsets) for part in (self.train, self.test)]
        return replace(self, train=parts[0], test=parts[1], origin=origin, public=np.sort(public[:keep]))

    def sharing(self, count: int, keep: int | None, stream: np.random.Generator) -> Partition:
        """The same partition with a public set of the clients' own training samples.

        Args:
            count: how many are drawn.
            keep: how many of these are used; None: all.
            stream: decides which.
        Raises: RecipeError if the clients have fewer.
        """
        pool = np.sort(self.train.indices)
        if count > len(pool):
            raise RecipeError(f"partition.public.count = {count}: the clients train on {len(pool)} samples")
        drawn = stream.permutation(pool)[:count]
        # The first of those drawn: another `keep` does not change which are drawn.
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


def make_partition(pool: Pool, section: PartitionRecipe, stream: np.random.Generator) -> Partition:
    """Draws a partition as a recipe says; a public set is not its matter.

    Raises: RecipeError if it cannot be made.
    """
    total, clients, scheme, test = len(pool.labels), section.clients, section.name, section.test
    if clients > total:
        raise RecipeError(f"partition.clients = {clients}: there are {total} training samples")
    bound = SCHEMES.bound(section, "partition")
    with blaming(f"partition.name: {scheme}"):
        drawn = bound.found(pool, clients, stream, **bound.arguments)
        drawn = drawn if isinstance(drawn, Division | ClientParts) else list(drawn)
    origin = {"scheme": scheme, "options": section.options, "test": test, "samples": total}
    if isinstance(drawn, Division):
        if test == "official":
            raise RecipeError(
                f"{scheme} says what each client tests on; expected local", path="partition.test"
            )
        if len(drawn.train) != clients or len(drawn.test) != clients:
            raise RecipeError(
                f"partition.name = {scheme!r}: it gave {len(drawn.train)} training and {len(drawn.test)} "
                f"test parts, expected {clients} of each"
            )
        pooled = _checked([*drawn.train, *drawn.test], 2 * clients, total, scheme)
        return Partition(pooled[:clients], pooled[clients:], origin)
    parts = _checked(drawn, clients, total, scheme)
    if test == "official":
        return Partition(parts, ClientParts.sized(parts.indices[:0], np.zeros(clients)), origin)
    train, tested = _halved(parts, section.test_fraction, stream)
    return Partition(train, tested, origin)


def _halved(
    parts: ClientParts, fraction: float, stream: np.random.Generator
) -> tuple[ClientParts, ClientParts]:
    """Training and test parts; whoever has a sample keeps at least one to train on."""
    sizes, shuffled = parts.sizes, parts.indices.copy()
    for start, stop in pairwise(parts.offsets.tolist()):
        stream.shuffle(shuffled[start:stop])
    tested = np.minimum(np.rint(fraction * sizes), np.maximum(sizes - 1, 0)).astype(np.int64)
    # The first of each client's shuffled samples are its test.
    is_test = np.arange(len(shuffled)) - np.repeat(parts.offsets[:-1], sizes) < np.repeat(tested, sizes)
    # Ascending, as every part is: the saved rows are sorted, and a loaded partition must equal this one.
    train = ClientParts.sized(shuffled[~is_test], sizes - tested)
    return train.ascending(), ClientParts.sized(shuffled[is_test], tested).ascending()


def _checked(drawn: Any, clients: int, total: int, scheme: str) -> ClientParts:
    """What a scheme gave, ascending; somebody's own scheme may be wrong."""
    parts = drawn if isinstance(drawn, ClientParts) else [np.asarray(part) for part in drawn]
    if len(parts) != clients:
        raise RecipeError(f"partition.name = {scheme!r}: it gave {len(parts)} clients, expected {clients}")
    given = () if isinstance(parts, ClientParts) else enumerate(parts)
    client = next((k for k, p in given if p.ndim != 1 or (len(p) and p.dtype.kind not in "iu")), None)
    if client is None:
        pooled = ClientParts.of(parts).ascending()
        outside = pooled.owners[(pooled.indices < 0) | (pooled.indices >= total)]
        client = int(outside[0]) if len(outside) else None
    if client is not None:
        part, shape = np.sort(parts[client], axis=None), list(parts[client].shape)
        raise RecipeError(
            f"partition.name = {scheme!r}: client {client} has {part[0]} to {part[-1]} ({part.dtype} {shape})"
            f", expected sample indices from 0 to {total - 1}"
        )
    uses = np.bincount(pooled.indices, minlength=total)
    if uses.max() > 1:
        raise RecipeError(
            f"partition.name = {scheme!r}: sample {uses.argmax()} is given {uses.max()} times, expected once"
        )
    return pooled
