"""Replies as the server sees them: parts by reference, fetched on access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from rayfed_kd.cluster.engine.calls import StepResult
from rayfed_kd.protocol import Array, Handle, Reply, to_tensor
from rayfed_kd.protocol.messages import NamedParts
from rayfed_kd.protocol.wire import UNCODED, Wire


class ReceivedParts(NamedParts):
    """A reply's parts, and a handle on them. They are fetched once a round, however often they are used.

    During the round the fetched arrays are kept, and each access copies one part into a tensor, which lives
    as long as the method holds it. The arrays are views of the object store's shared memory, so a cohort of
    100 clients with 9 MB each costs the server's process no memory. Kept tensors would cost 900 MB, to save
    copies of a millisecond each. After the round the views are released: slots may keep this object for
    long, and the store can spill an object to disk only while no view of it exists.

    Args:
        handle: reference to the parts.
        names: names of the parts.
        wire: decodes them.
        keeps: whether fetched arrays are kept until `end_round`.
        sent: the message that they answer, which a codec of differences decodes them with.
    """

    def __init__(
        self,
        handle: Handle,
        names: Sequence[str],
        wire: Wire = UNCODED,
        *,
        keeps: bool = True,
        sent: Handle | None = None,
    ) -> None:
        self._handle, self._names, self._wire, self._keeps = handle, names, wire, keeps
        self._sent = sent if wire.differs else None
        self._arrays: Mapping[str, Array] | None = None

    def resolve(self) -> Mapping[str, Array]:
        """The arrays by name, decoded."""
        if self._arrays is not None:
            return self._arrays
        arrays = self._wire.decoded(self._handle.resolve(), self._received)
        # After `end_round` a kept view would hold the object in memory; see above.
        if self._keeps:
            self._arrays = arrays
        return arrays

    def _received(self, name: str) -> Array | None:
        return None if self._sent is None else self._sent.resolve().get(name)

    def own(self) -> ReceivedParts:
        """This object, now on a copy of its arrays that is not shared with other clients' arrays."""
        self._handle = self._handle.own()
        return self

    def end_round(self) -> None:
        """Release the arrays. Later accesses, as of a slot whose client returns, fetch them each time."""
        self._arrays, self._keeps = None, False

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return to_tensor(self.resolve()[name])


class ReceivedReply(Reply):
    """A reply that is at the server: it knows its client, and its parts are fetched on access.

    Args:
        client: id of the client that replied.
        result: the step's result.
        wire: decodes the parts.
        sent: the message that it answers; None for an observation.
    """

    parts: ReceivedParts

    def __init__(
        self, client: int, result: StepResult, wire: Wire = UNCODED, sent: Handle | None = None
    ) -> None:
        # Not through `Package`'s own, which looks at every part and would fetch it.
        self.client, self.metadata = client, result.facts.metadata
        self.parts = self.handle = ReceivedParts(result.parts, list(result.facts.sizes), wire, sent=sent)
        self.sent = sent
