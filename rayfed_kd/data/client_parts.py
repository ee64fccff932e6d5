"""Each client's sample indices, all in one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

Array = np.ndarray[Any, Any]


class ClientParts(Sequence[Array]):
    """Sample indices per client: a read-only sequence of K arrays, stored as two.

    A million arrays of their own would take 100 MB, and each process would need its copy; two arrays lie in
    Ray's object store once a machine.

    Args:
        indices: [n] int64, client 0's samples, then client 1's, and so on.
        offsets: [K + 1] int64, where each client's begin; the last is n.
    """

    def __init__(self, indices: Array, offsets: Array) -> None:
        self.indices, self.offsets = indices, offsets

    @classmethod
    def of(cls, parts: Sequence[Array]) -> ClientParts:
        """The parts of a sequence of arrays, copied into one."""
        if isinstance(parts, ClientParts):
            return parts
        indices = np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)
        return cls.sized(indices, np.fromiter(map(len, parts), np.int64, len(parts)))

    @classmethod
    def sized(cls, indices: Array, sizes: Array) -> ClientParts:
        """Parts of so many samples each, one after another."""
        return cls(indices, np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)]))

    @classmethod
    def owned(cls, owners: Array, samples: Array, clients: int) -> ClientParts:
        """Samples by owner, ascending within each client.

        Args:
            owners: [n], the client that each sample belongs to.
            samples: [n], their indices.
            clients: K.
        """
        order = np.lexsort((samples, owners))
        return cls.sized(samples[order].astype(np.int64), np.bincount(owners, minlength=clients))

    @property
    def sizes(self) -> Array:
        """[K] int64, how many samples each client has."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> Array:
        """[n] int64, whose each of `indices` is."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def ascending(self) -> ClientParts:
        """The same with each client's samples in ascending order."""
        owners = self.owners
        if (np.diff(self.indices)[np.diff(owners) == 0] >= 0).all():
            return self
        return ClientParts.owned(owners, self.indices, len(self))

    def only(self, clients: Array) -> ClientParts:
        """The parts of some clients; the others, who stay in the sequence, have no samples."""
        chosen = np.isin(np.arange(len(self)), clients)
        return ClientParts.sized(self.indices[np.repeat(chosen, self.sizes)], self.sizes * chosen)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, place: int) -> Array: ...

    @overload
    def __getitem__(self, place: slice) -> ClientParts: ...

    def __getitem__(self, place: int | slice) -> Array | ClientParts:
        if isinstance(place, slice):
            return ClientParts.of([self[index] for index in range(len(self))[place]])
        client = range(len(self))[place]
        return np.asarray(self.indices[self.offsets[client] : self.offsets[client + 1]])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClientParts):
            return NotImplemented
        return np.array_equal(self.indices, other.indices) and np.array_equal(self.offsets, other.offsets)

    __hash__ = None  # type: ignore[assignment]
