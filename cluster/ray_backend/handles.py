"""Handles on arrays: in Ray's object store, in one object shared by a group, or inside the calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import ray

from cluster.ray_backend.packing import unstacked
from rayfed_kd.errors import RunError
from rayfed_kd.protocol import Array


@dataclass(frozen=True)
class RayHandle:
    """A handle on arrays in Ray's object store."""

    ref: Any

    def resolve(self) -> Mapping[str, Array]:
        """The arrays, as read-only views of shared memory.

        Raises: RunError if they were lost with a machine.
        """
        # Not `ray.get`: inside an async actor, as the server is, it warns in every thread.
        try:
            arrays: Mapping[str, Array] = self.ref.future().result()
        except ray.exceptions.ObjectLostError as error:
            raise RunError(
                f"a client's vector or state was lost with its machine ({type(error).__name__}); "
                "faults.durable=true keeps a second copy beside the server"
            ) from error
        return arrays

    def own(self) -> RayHandle:
        """This handle: its object is not shared with other clients."""
        return self


@dataclass(frozen=True)
class Enclosed:
    """Small arrays that travel inside every call, which is faster than Ray's object store.

    Attributes:
        name: a unique name; handles with equal names have equal arrays.
        arrays: the arrays; not compared, so that copies in other processes are equal.
    """

    name: str
    arrays: Mapping[str, Array] = field(compare=False)

    def resolve(self) -> Mapping[str, Array]:
        """The arrays themselves."""
        return self.arrays

    def own(self) -> Enclosed:
        """This handle: its arrays are not shared with other clients."""
        return self


class Rows:
    """A group's arrays in one object of Ray's store, fetched once per process.

    Args:
        handle: reference to the object.
    """

    def __init__(self, handle: RayHandle) -> None:
        self._handle = handle

    def __reduce__(self) -> Any:
        # Without the cached `unpacked`: only the reference travels, and the receiver fetches for itself.
        return Rows, (self._handle,)

    @cached_property
    def unpacked(self) -> Sequence[Mapping[str, Array]]:
        """Each client's arrays by name, in the group's order."""
        # Views of the one object, kept: each client of the group reads its rows without a fetch of its own.
        return unstacked(self._handle.resolve())


class RowHandle:
    """A handle on one client's arrays among those of its group.

    Args:
        rows: the group's arrays.
        place: the client's place in the group.
    """

    def __init__(self, rows: Rows, place: int) -> None:
        self._rows, self._place = rows, place
        # The copy that `own` made. Every call of `own` returns the same one.
        self._own: RayHandle | None = None

    def resolve(self) -> Mapping[str, Array]:
        """The client's arrays, as read-only views of shared memory."""
        return self._rows.unpacked[self._place]

    def own(self) -> RayHandle:
        """A handle on a copy in the store. A kept `RowHandle` would keep the whole group's arrays there."""
        if self._own is None:
            self._own = RayHandle(ray.put(dict(self.resolve())))
        return self._own
