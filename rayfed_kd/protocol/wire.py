"""One direction of a method's traffic: what is sent for parts, and how large it is.

Without codecs parts travel as they are. `rayfed_kd.features.codecs.coded_wire` encodes and decodes them. A
recipe's features may change a reply between a client's step and the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rayfed_kd.protocol.messages import Array, Number

Arrays = Mapping[str, Array]
Memory = Mapping[str, Array]


def all_finite(array: Array) -> bool:
    """Whether no number of an array is NaN or infinite."""
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


class PartSize(NamedTuple):
    """How large a part is.

    Attributes:
        elements: of the part itself.
        bytes: on the wire.
        raw_bytes: of the part itself.
    """

    elements: int
    bytes: int
    raw_bytes: int


Received = Callable[[str], Array | None]


def nothing_received(name: str) -> Array | None:
    """No part of the message that is answered is known."""
    return None


@dataclass(frozen=True)
class Sending:
    """Who sends what when.

    Attributes:
        stream: names the random streams: a client and its participation, or a message of a round.
        received: part name -> that part of the message that is answered, as decoded; None: it has none.
        memory: the sender's, as the last `Sent` of it says.
    """

    stream: tuple[str | int, ...] = ()
    received: Received = nothing_received
    memory: Memory = field(default_factory=dict)


NOBODY = Sending()


class Sent(NamedTuple):
    """What is sent for some parts.

    Attributes:
        wire: arrays by name.
        sizes: part -> its size.
        memory: the sender's new memory; that of parts that were not sent stays.
        logged: what codecs count.
        refused: for each part that its codec cannot encode, what is wrong; it travels as it is.
    """

    wire: Arrays
    sizes: Mapping[str, PartSize]
    memory: Memory
    logged: Mapping[str, float]
    refused: tuple[str, ...]


class Wire:
    """One direction of a method's traffic in which parts travel as they are."""

    @property
    def remembers(self) -> bool:
        """Whether senders keep something for it."""
        return False

    @property
    def differs(self) -> bool:
        """Whether what is sent for a part depends on the message that it answers."""
        return False

    def encoded(self, parts: Arrays, sending: Sending = NOBODY) -> Sent:
        """What is sent for these parts."""
        sizes = {name: PartSize(part.size, part.nbytes, part.nbytes) for name, part in parts.items()}
        return Sent(parts, sizes, {}, {}, ())

    def decoded(self, wire: Arrays, received: Received = nothing_received) -> Arrays:
        """The parts that were sent as `wire`.

        Args:
            wire: as `encoded` gave it; read-only, possibly shared memory.
            received: as in `Sending`.
        """
        return wire


UNCODED = Wire()


@dataclass(frozen=True)
class OutgoingReply:
    """A reply before it is encoded.

    Attributes:
        parts: its parts.
        metadata: its numbers.
        notes: what features tell their counterparts at the server, by name; no number of the method's.
    """

    parts: Mapping[str, Array]
    metadata: Mapping[str, Number]
    notes: Mapping[str, float] = field(default_factory=dict)
