"""Handles on arrays that travel on Ray: in its store, in an object shared by a group, or with the calls."""

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
        """The arrays, read-only views of shared memory. Not through `ray.get`, so also in an async actor.

        Raises: RunError if they were lost with a machine.
        """
        try:
            arrays: Mapping[str, Array] = self.ref.future().result()
        except ray.exceptions.ObjectLostError as error:
            raise RunError(
                f"a client's vector or state was lost with its machine ({type(error).__name__}); "
                "faults.durable=true keeps a second copy beside the server"
            ) from error
        return arrays

    def own(self) -> RayHandle:
        """Itself."""
        return self


@dataclass(frozen=True)
class Enclosed:
    """Arrays that are small enough to travel with every call: Ray's store takes longer to write and read.

    Attributes:
        name: no other's; equal names, equal arrays.
        arrays: the arrays.
    """

    name: str
    arrays: Mapping[str, Array] = field(compare=False)

    def resolve(self) -> Mapping[str, Array]:
        """The arrays themselves."""
        return self.arrays

    def own(self) -> Enclosed:
        """Itself."""
        return self


class Rows:
    """A group's arrays in one object of Ray's store, a mapping for each client; fetched once a process."""

    def __init__(self, handle: RayHandle) -> None:
        self._handle = handle

    def __reduce__(self) -> Any:
        return Rows, (self._handle,)

    @cached_property
    def found(self) -> Sequence[Mapping[str, Array]]:
        """All of them, in the group's order."""
        return unstacked(self._handle.resolve())


class RowHandle:
    """A handle on one client's arrays among its group's."""

    def __init__(self, rows: Rows, place: int) -> None:
        self._rows, self._place = rows, place
        self._own: RayHandle | None = None

    def resolve(self) -> Mapping[str, Array]:
        """The arrays, read-only views of shared memory."""
        return self._rows.found[self._place]

    def own(self) -> RayHandle:
        """A copy by itself: kept for long, this handle would keep the whole group's arrays."""
        if self._own is None:
            self._own = RayHandle(ray.put(dict(self.resolve())))
        return self._own
