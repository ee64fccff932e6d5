"""Replies as the server sees them: parts by reference, fetched when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from cluster.engine.calls import StepResult
from rayfed_kd.protocol import Array, Handle, Reply, to_tensor
from rayfed_kd.protocol.message_codec import Wire


class ReceivedParts(Mapping[str, Tensor]):
    """A reply's parts and, as a handle, the reference to them: fetched once a round, however often used.

    While the round lasts, the fetched arrays are kept as they lie, and each use copies one part into torch's
    own memory, for as long as the method holds it. The arrays are views of the object store's shared memory,
    so a cohort of 100 clients with 9 MB each costs no memory of the server's process; kept tensors would cost
    900 MB, to save copies of a millisecond each. After the round the views are let go: slots keep this object
    for long, and the store can move an object to disk only while nobody looks at it.

    Args:
        handle: where the parts are.
        names: of the parts.
        wire: decodes them; None: they travelled as they are.
        keeps: whether fetched arrays are kept until `end_round`.
    """

    def __init__(
        self, handle: Handle, names: Sequence[str], wire: Wire | None = None, *, keeps: bool = True
    ) -> None:
        self._handle, self._names, self._wire, self._keeps = handle, names, wire, keeps
        self._arrays: Mapping[str, Array] | None = None

    def resolve(self) -> Mapping[str, Array]:
        """The arrays by name, decoded."""
        if self._arrays is not None:
            return self._arrays
        arrays = self._handle.resolve()
        if self._wire is not None and self._wire.codec is not None:
            arrays = self._wire.decoded(arrays)
        if self._keeps:
            self._arrays = arrays
        return arrays

    def own(self) -> ReceivedParts:
        """Itself, from now on on arrays that lie apart from those of other clients."""
        self._handle = self._handle.own()
        return self

    def end_round(self) -> None:
        """Lets the arrays go. Who asks from now on, as a slot does when its client returns, fetches anew."""
        self._arrays, self._keeps = None, False

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return to_tensor(self.resolve()[name])

    def __contains__(self, name: object) -> bool:
        return name in self._names  # Mapping's own would fetch it

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def received(client: int, result: StepResult, wire: Wire | None = None) -> Reply:
    """A step's reply.

    Args:
        client: who answered.
        wire: decodes the parts; None: they travelled as they are.
    """
    parts = ReceivedParts(result.parts, list(result.facts.sizes), wire)
    reply: Reply = Reply.of(parts, result.facts.metadata)
    reply.client, reply.handle = client, parts
    return reply
