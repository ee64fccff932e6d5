"""Who holds what: training and test parts per client, drawn, saved and read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rayfed_kd.data.partition_file import NOBODY, PUBLIC, TEST, TRAIN, PartitionRows, read_rows
from rayfed_kd.data.schemes import Pool
from rayfed_kd.data.schemes_of_source import Division
from rayfed_kd.errors import DataError, RecipeError
from rayfed_kd.recipe.registry import blaming, load_function, options_model
from rayfed_kd.recipe.roles import PARTITION_SCHEME
from rayfed_kd.recipe.validation import validate

__all__ = ["SCHEMES", "Division", "Partition", "Pool", "make_partition"]

Array = np.ndarray[Any, Any]

SCHEMES = {
    name: f"rayfed_kd.data.{module}:{name}"
    for module, names in {
        "schemes": ("iid", "dirichlet", "dirichlet_client", "dirichlet_fedkf", "classes", "quantity"),
        "schemes_of_source": ("natural", "by_column", "from_source"),
    }.items()
    for name in names
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
        rows = PartitionRows(
            np.concatenate([_owners(self.train), _owners(self.test), nobody]),
            np.repeat([TRAIN, TEST, PUBLIC], [_total(self.train), _total(self.test), len(self.public)]),
            np.concatenate([*self.train, *self.test, self.public]).astype(np.int64),
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
        drawn = function(pool, clients, stream, **arguments)
        drawn = drawn if isinstance(drawn, Division) else list(drawn)
    origin = {"scheme": scheme, "options": dict(options), "test": test, "samples": total}
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
        parts = _checked([*drawn.train, *drawn.test], 2 * clients, total, scheme)
        return Partition(tuple(parts[:clients]), tuple(parts[clients:]), origin)
    parts = _checked(drawn, clients, total, scheme)
    if test == "official":
        return Partition(tuple(parts), tuple(np.zeros(0, dtype=np.int64) for _ in parts), origin)
    halves = [_halved(part, test_fraction, stream) for part in parts]
    return Partition(tuple(train for train, _ in halves), tuple(held for _, held in halves), origin)


def _halved(part: Array, fraction: float, stream: np.random.Generator) -> tuple[Array, Array]:
    """Training and test part; whoever has a sample keeps at least one to train on."""
    shuffled = stream.permutation(part)
    held = min(round(fraction * len(part)), max(len(part) - 1, 0))
    # Ascending, as every part is: the saved rows are sorted, and a loaded partition must equal this one.
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


def _owners(parts: Sequence[Array]) -> Array:
    return np.repeat(np.arange(len(parts)), [len(part) for part in parts])


def _total(parts: Sequence[Array]) -> int:
    return sum(len(part) for part in parts)
