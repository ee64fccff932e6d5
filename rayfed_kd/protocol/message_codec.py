"""How the parts of messages and replies travel: as they are, or as a codec makes them.

A codec is one class in one file. This one sends weights as float16:

    class Half(Codec):
        def encode(self, array, part):
            half = part.kind == "weights"
            return {"half": array.astype(np.float16)} if half else super().encode(array, part)

        def decode(self, wire, part):
            return wire["half"].astype(np.float32) if "half" in wire else super().decode(wire, part)

A recipe names it: `codec: {name: my_codec:Half}`. Parts are encoded where they are sent and decoded where
they are received. The ledger counts, and the simulated clock charges, what the codec put on the wire. Parts
declared as `Simulated` would not travel, so they are left as they are, as are looks at clients for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from rayfed_kd.protocol.messages import Array, Declaration, Kind, Simulated

Direction = Literal["up", "down"]


@dataclass(frozen=True)
class TravellingPart:
    """What a codec knows of a part: its name, its kind, and whether it goes up or down."""

    name: str
    kind: Kind
    direction: Direction


class Codec:
    """Base of all codecs: a part as it is. A codec holds only its options, and is a pure function of a part.

    Options are the keyword-only parameters of its constructor.
    """

    def encode(self, array: Array, part: TravellingPart) -> Mapping[str, Array]:
        """What goes onto the wire for a part.

        Args:
            array: the part; read-only.
        Returns: arrays by names of the codec's own. Their bytes are counted under the part's kind.
        """
        return {"": array}

    def decode(self, wire: Mapping[str, Array], part: TravellingPart) -> Array:
        """The part again, with the shape and dtype that it had; with other values where the codec is lossy.

        Args:
            wire: what `encode` gave; read-only, possibly shared memory.
        """
        return wire[""]


class PartSize(NamedTuple):
    """How large a part is.

    Attributes:
        elements: of the part itself.
        bytes: on the wire.
    """

    elements: int
    bytes: int


@dataclass(frozen=True)
class Wire:
    """One direction of a method's traffic.

    Attributes:
        declared: part -> kind, of the method.
        direction: down or up.
        codec: None: parts travel as they are.
    """

    declared: Declaration
    direction: Direction
    codec: Codec | None = None

    def encoded(self, parts: Mapping[str, Array]) -> tuple[Mapping[str, Array], Mapping[str, PartSize]]:
        """What is sent for these parts, and how large each of them is."""
        if self.codec is None:
            return parts, {name: PartSize(array.size, array.nbytes) for name, array in parts.items()}
        wire: dict[str, Array] = {}
        sizes = {}
        for name, array in parts.items():
            part = self._part(name)
            coded = {"": array} if part is None else self.codec.encode(array, part)
            # Part names are Python identifiers, so a slash cannot be in one of them.
            wire |= {f"{name}/{key}" if key else name: np.asarray(value) for key, value in coded.items()}
            sizes[name] = PartSize(array.size, sum(value.nbytes for value in coded.values()))
        return wire, sizes

    def decoded(self, wire: Mapping[str, Array]) -> Mapping[str, Array]:
        """The parts that were sent as `wire`."""
        codec = self.codec or Codec()
        coded: dict[str, dict[str, Array]] = {}
        for name, array in wire.items():
            part_name, _, key = name.partition("/")
            coded.setdefault(part_name, {})[key] = array
        parts = {}
        for name, arrays in coded.items():
            part = self._part(name)
            parts[name] = arrays[""] if part is None else codec.decode(arrays, part)
        return parts

    def _part(self, name: str) -> TravellingPart | None:
        """None: it is left as it is. A part that is not declared is refused when it is counted."""
        kind = self.declared.get(name)
        return (
            None
            if kind is None or isinstance(kind, Simulated)
            else TravellingPart(name, kind, self.direction)
        )
