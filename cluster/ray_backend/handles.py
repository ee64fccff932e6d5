"""Handles on arrays: in Ray's object store, in one object shared by a group, or inside the calls.

`Ahead` fetches replies from other machines before the server asks for them.
"""

from __future__ import annotations

import platform
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, cached_property
from threading import Lock
from typing import Any

import numpy as np
import ray

from rayfed_kd.cluster.engine.calls import Held, StepResult
from rayfed_kd.cluster.ray_backend.packing import unstacked
from rayfed_kd.errors import RunError
from rayfed_kd.protocol import Array, Handle
from rayfed_kd.protocol.summed import GroupSum

# Most bytes of a message that travels inside every call instead of in the object store. Measured with Ray
# 2.60: a call with an argument of 10 to 80 kB takes two thirds of the time of one with a reference to it.
SMALL = 32 * 1024


@dataclass(frozen=True)
class RayHandle(Handle):
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


def published(arrays: Mapping[str, Array]) -> RayHandle | Held:
    """A handle on arrays: put into the object store once, or small ones, which travel with every call."""
    # A client's state from a checkpoint is no array, and always goes into the store.
    plain = all(isinstance(array, np.ndarray) for array in arrays.values())
    if plain and sum(array.nbytes for array in arrays.values()) <= SMALL:
        # Copies: Ray serializes a call when the event loop sends it, and the server goes on meanwhile.
        return Held({name: array.copy() for name, array in arrays.items()})
    return RayHandle(ray.put(dict(arrays)))


def stored(result: StepResult) -> StepResult:
    """A result whose parts and state are in the object store of this machine, or with the calls if small."""
    parts, state = result.parts, result.state
    parts = parts.copied(published) if isinstance(parts, GroupSum) else published(parts.resolve())
    if result.facts.keeps_state:
        state = RayHandle(ray.put({**state.resolve()}))
    return StepResult(result.facts, parts, state)


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


def rows_of(ref: Any, count: int) -> Sequence[Handle]:
    """Handles on each client's arrays in an object.

    Args:
        ref: a reference to a group's arrays.
        count: number of its clients.
    """
    handle = RayHandle(ref)
    if count == 1:  # nothing is shared
        return [handle]
    rows = Rows(handle)
    return [RowHandle(rows, place) for place in range(count)]


def machine_name() -> str:
    """This machine's name and Ray's address of it: containers and cloned machines may share a name."""
    return f"{platform.node()} ({ray.util.get_node_ip_address()})"  # type: ignore[no-untyped-call]


def half_of_the_store() -> int:
    """Half of what the object store of this machine holds, in bytes."""
    node_id = ray.get_runtime_context().get_node_id()
    nodes = {node["NodeID"]: node for node in ray.nodes()}  # type: ignore[no-untyped-call]
    return int(nodes[node_id]["Resources"].get("object_store_memory", 0)) // 2


class Ahead:
    """Fetches replies from other machines as soon as they are there, while other clients still train.

    The server adds replies in client order, when all are there; without this each would cross only then. What
    is fetched is a second copy in the store of the server's machine, which Ray drops if it needs the room.
    One at a time: Ray asks again for what takes longer than ten seconds, which then crosses twice.

    No more than half of the store in a round: of more, Ray might drop copies too early.
    """

    # Ray sends smaller results along with the call's end.
    INLINE = 100 * 1024

    def __init__(self) -> None:
        # Asked once, and only when there is something to fetch: both need a Ray that runs.
        self._here, self._room = cache(machine_name), cache(half_of_the_store)
        self._lock = Lock()  # a fetch ends in a thread of Ray's
        self._waiting: deque[Any] = deque()
        self._fetching: Future[Any] | None = None
        self._bytes = 0

    def fetch(self, ref: Any, machine: str, size: int) -> None:
        """Fetch an object after those before it, unless it is here, comes anyway, or there is no room.

        Args:
            ref: of the object.
            machine: where it is.
            size: of it in bytes, at least about.
        """
        if size <= self.INLINE or machine == self._here() or self._bytes + size > self._room():
            return
        self._bytes += size
        with self._lock:
            self._waiting.append(ref)
            if self._fetching is not None:
                return
        self._next()

    def end_round(self) -> None:
        """Forget what still waits, and count anew: the server is using the replies."""
        with self._lock:
            self._waiting.clear()
        self._bytes = 0

    def _next(self, done: Future[Any] | None = None) -> None:
        # Arrays that came are views of the store, let go of at once. Errors come again to whoever asks.
        with self._lock:
            ref = self._waiting.popleft() if self._waiting else None
            self._fetching = future = None if ref is None else ref.future()
        if future is not None:
            future.add_done_callback(self._next)
