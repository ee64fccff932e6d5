"""A direction of a method's traffic with codecs: parts encoded by the sender, decoded by the receiver.

What is on the wire for a coded part `w`, as named arrays, all of which the ledger counts:

    w/array        what the chain's last codec made
    w/0.scale      a side array of the first codec, `scale`
    w/0.shape      [dimensions] int32, the shape that the first codec got, if its array has another
    w/0.damping    [tensors] float32, by what tensors are multiplied that the first codec decodes; see Chain
    w/exact        numbers of `w` that no codec changes, as BatchNorm's statistics
    w/change       empty: `w` is below 0 where a model has running variances, as the change of a model may be

A part without a codec, an empty one, and one with a NaN travel as they are, under the part's own name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rayfed_kd.features.codecs.chain import Chain, EncodedArray
from rayfed_kd.models.vectors import Layout, Role
from rayfed_kd.protocol.declaration import Kind
from rayfed_kd.protocol.message_codec import VECTORS, CodecError, Direction, TravellingPart
from rayfed_kd.protocol.messages import Array
from rayfed_kd.protocol.wire import (
    NOBODY,
    Arrays,
    PartSize,
    Received,
    Sending,
    Sent,
    Wire,
    all_finite,
    nothing_received,
)

Chains = Mapping[str, Chain]


@dataclass(frozen=True)
class CodedWire(Wire):
    """One direction of a method's traffic, of which parts of some kinds are encoded.

    Attributes:
        kinds: part -> kind, of those that would travel in a real deployment; others are left as they are.
        direction: down or up.
        chains: kind -> its codecs; parts of other kinds travel as they are.
        layouts: length -> tensors of a vector of that length.
        exact: roles of tensors in a vector that lossy codecs leave as they are.
        seed: of the run.
    """

    kinds: Mapping[str, Kind]
    direction: Direction
    chains: Chains = field(default_factory=dict)
    layouts: Mapping[int, Layout] = field(default_factory=dict)
    exact: tuple[Role, ...] = ("buffer",)
    seed: int = 0

    @property
    def remembers(self) -> bool:
        """Whether senders keep something for it."""
        return any(chain.remembers for chain in self._coded())

    @property
    def differs(self) -> bool:
        """Whether a part's wire form depends on the message that it answers."""
        return any(chain.differs for chain in self._coded())

    def _coded(self) -> Iterator[Chain]:
        return (self.chains[kind] for kind in self.kinds.values() if kind in self.chains)

    def encoded(self, parts: Arrays, sending: Sending = NOBODY) -> Sent:
        """What is sent for these parts."""
        wire, memory, sizes = dict[str, Array](), dict(sending.memory), dict[str, PartSize]()
        logged, refused = dict[str, float](), []
        for name, array in parts.items():
            chain = self._chain(name)
            coded: Arrays = {"": array}
            if chain is not None and array.size and all_finite(array):
                try:
                    coded, remembered, counted = self._encoded(name, array, chain, sending)
                except CodecError as error:
                    refused.append(f"{name}: {error}")
                else:
                    # All of the part's memory is replaced, so that nothing of another shape stays.
                    memory = {key: value for key, value in memory.items() if key.partition("/")[0] != name}
                    memory |= {f"{name}/{key}": value for key, value in remembered.items()}
                    logged |= {f"{name}_{key}": number for key, number in counted.items()}
            # Part names are Python identifiers, so a slash cannot be in one of them.
            wire |= {f"{name}/{key}" if key else name: value for key, value in coded.items()}
            sizes[name] = PartSize(array.size, sum(value.nbytes for value in coded.values()), array.nbytes)
        return Sent(wire, sizes, memory, logged, tuple(refused))

    def decoded(self, wire: Arrays, received: Received = nothing_received) -> Arrays:
        """The parts that were sent as `wire`.

        Args:
            wire: what `encoded` gave; read-only, possibly shared memory.
            received: as in `Sending`.
        """
        coded: dict[str, dict[str, Array]] = {}
        for key, array in wire.items():
            name, _, inner = key.partition("/")
            coded.setdefault(name, {})[inner] = array
        return {name: self._decoded(name, arrays, received) for name, arrays in coded.items()}

    def _chain(self, name: str) -> Chain | None:
        """None: the part is left as it is. One that is not declared is refused when it is counted."""
        return self.chains.get(self.kinds.get(name, ""))

    def _encoded(self, name: str, array: Array, chain: Chain, sending: Sending) -> EncodedArray:
        received = self._received(name, chain, sending.received, array.shape)
        part, exact = self._part(name, chain, array.shape)
        prefix = f"{name}/"
        part = replace(
            part,
            received=received if received is None or exact is None else received[~exact],
            memory={
                k.removeprefix(prefix): value for k, value in sending.memory.items() if k.startswith(prefix)
            },
            stream=(self.seed, (self.direction, name, *sending.stream)),
        )
        if exact is None:
            result = chain.encode(array, part)
            changes = any(array[place].min() < 0 for place in self._variances(array, chain))
            return result._replace(wire={**result.wire, "change": np.empty(0)}) if changes else result
        result = chain.encode(array[~exact], part)
        return result._replace(wire={**result.wire, "exact": array[exact]})

    def _decoded(self, name: str, wire: Arrays, received: Received) -> Array:
        chain = self._chain(name)
        if "" in wire or chain is None:
            return wire[""]
        shape = chain.shape(wire)
        if "exact" in wire:
            shape = (shape[0] + wire["exact"].size,)
        before = self._received(name, chain, received, shape)
        part, exact = self._part(name, chain, shape)
        if exact is None:
            array = chain.decode(wire, replace(part, received=before))
            array = np.require(array, requirements="W")  # a copy of what was sent, if it is that
            # What is decoded of a model may have come out with running variances below zero.
            for place in () if "change" in wire else self._variances(array, chain):
                array[place] = np.maximum(array[place], 0)
            return array
        coded = chain.decode(wire, replace(part, received=None if before is None else before[~exact]))
        if coded.shape != part.shape:  # refused where it is read; NumPy would spread one number over all
            return coded
        array = np.empty(shape, coded.dtype)
        array[~exact], array[exact] = coded, wire["exact"]
        return array

    def _received(self, name: str, chain: Chain, received: Received, shape: tuple[int, ...]) -> Array | None:
        """The part that was received, if the chain needs it and it has this shape."""
        array = received(name) if chain.differs else None
        return array if array is not None and array.shape == shape else None

    def _part(
        self, name: str, chain: Chain, shape: tuple[int, ...]
    ) -> tuple[TravellingPart, np.ndarray[Any, np.dtype[np.bool_]] | None]:
        """What is known of a part of that shape, and which of its numbers stay exact; None: none."""
        kind = self.kinds[name]
        layout = self.layouts.get(shape[0]) if kind in VECTORS and len(shape) == 1 else None
        part = TravellingPart(name, kind, self.direction, shape, layout)
        if layout is None or chain.lossless:
            return part, None
        exact = layout.places(self.exact)
        if not exact.any():
            return part, None
        return replace(part, layout=layout.without(self.exact), shape=(int((~exact).sum()),)), exact

    def _variances(self, array: Array, chain: Chain) -> Iterator[slice]:
        """Where a vector of a model's length has running variances, if the chain has a loss."""
        layout = self.layouts.get(array.size) if array.ndim == 1 and not chain.lossless else None
        for tensor, start, stop in () if layout is None else layout.placed():
            if tensor.name.endswith("running_var"):
                yield slice(start, stop)
