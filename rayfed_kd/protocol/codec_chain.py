"""Codecs one after another: each encodes the array of the one before it, and decoding goes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rayfed_kd.protocol.message_codec import Codec, CodecError, Coded, TravellingPart
from rayfed_kd.protocol.messages import Array

Arrays = Mapping[str, Array]
Memory = Mapping[str, Array]


class Stage(NamedTuple):
    """A codec's place in a chain.

    Attributes:
        name: of the codec, as the recipe has it.
        codec: with its options.
        feedback: whether the client adds to the next array what receivers did not get of this one.
    """

    name: str
    codec: Codec
    feedback: bool = False


class EncodedArray(NamedTuple):
    """What a chain makes of an array: what travels, what is remembered, and what is logged."""

    wire: Arrays
    memory: dict[str, Array]
    logged: Mapping[str, float]


@dataclass(frozen=True)
class Chain:
    """Codecs, each of which encodes the array of the one before it."""

    stages: tuple[Stage, ...]

    @property
    def lossless(self) -> bool:
        """Whether a decoded array has every bit of the encoded one."""
        return all(stage.codec.lossless for stage in self.stages)

    @property
    def remembers(self) -> bool:
        """Whether clients keep something for it."""
        return any(stage.feedback or stage.codec.remembers for stage in self.stages)

    @property
    def differs(self) -> bool:
        """Whether it needs the part that was received."""
        return any(stage.codec.differs for stage in self.stages)

    @property
    def meant_for_changes(self) -> str | None:
        """The name of the first codec that is for changes and gets none; None if there is no such."""
        for stage in self.stages:
            if stage.codec.differs:
                return None
            if stage.codec.for_changes:
                return stage.name
        return None

    def encode(self, array: Array, part: TravellingPart) -> EncodedArray:
        """The array's wire form.

        Args:
            array: not empty, finite.
            part: what is known of it; its memory is the chain's.
        Raises: CodecError naming the codec that cannot encode what it gets.
        """
        wire, memory, logged = dict[str, Array](), dict[str, Array](), dict[str, float]()
        steps: list[tuple[TravellingPart, Array, Coded]] = []
        for place, stage in enumerate(self.stages):
            if not array.size:  # an earlier codec needs no numbers; there is nothing more to encode
                break
            facts = self._facts(part, place, array.shape)
            residual = part.memory.get(f"{place}/residual") if stage.feedback else None
            # A residual belongs to one shape: another model's starts from nothing.
            if residual is not None and residual.shape == array.shape:
                array = array + residual
            try:
                coded = stage.codec.encode(array, facts)
            except CodecError as error:
                raise CodecError(f"{stage.name}: {error}") from None
            steps.append((facts, array, coded))
            wire |= {f"{place}.{name}": np.asarray(side) for name, side in coded.side.items()}
            memory |= {f"{place}.{name}": value for name, value in coded.memory.items()}
            logged |= coded.logged
            if coded.array.shape != array.shape:
                wire[f"{place}.shape"] = np.array(array.shape, np.int32)
            array = coded.array
        wire["array"] = np.asarray(array)
        return EncodedArray(wire, memory | self._residuals(steps), logged)

    def _residuals(self, steps: list[tuple[TravellingPart, Array, Coded]]) -> dict[str, Array]:
        """What receivers do not get: what went into a codec less what comes out of it when all is decoded."""
        residuals = dict[str, Array]()
        first = next((place for place, stage in enumerate(self.stages) if stage.feedback), len(steps))
        array = steps[-1][2].array
        for place in range(len(steps) - 1, first - 1, -1):
            facts, before, coded = steps[place]
            array = self.stages[place].codec.decode(Coded(array, coded.side), facts)
            if self.stages[place].feedback:
                residuals[f"{place}/residual"] = before - array
        return residuals

    def decode(self, wire: Arrays, part: TravellingPart) -> Array:
        """The array again."""
        array = wire["array"]
        for place in range(len(self.stages) - 1, -1, -1):
            prefix = f"{place}."
            side = {key.removeprefix(prefix): one for key, one in wire.items() if key.startswith(prefix)}
            if not array.size and "shape" not in side:  # it was empty before this codec, which was left out
                continue
            facts = self._facts(part, place, _shape(side.pop("shape", None), array))
            array = self.stages[place].codec.decode(Coded(array, side), facts)
        return array

    def shape(self, wire: Arrays) -> tuple[int, ...]:
        """Of the array that `encode` got."""
        sent = (wire[f"{place}.shape"] for place in range(len(self.stages)) if f"{place}.shape" in wire)
        return _shape(next(sent, None), wire["array"])

    def _facts(self, part: TravellingPart, place: int, shape: tuple[int, ...]) -> TravellingPart:
        """What the codec at `place` is told."""
        layout = part.layout if part.layout is not None and shape == (part.layout.size,) else None
        received = part.received if part.received is not None and part.received.shape == shape else None
        prefix = f"{place}."
        memory = {key.removeprefix(prefix): one for key, one in part.memory.items() if key.startswith(prefix)}
        seed, path = part.stream
        return replace(
            part, shape=shape, layout=layout, received=received, memory=memory, stream=(seed, (*path, place))
        )


def _shape(sent: Array | None, array: Array) -> tuple[int, ...]:
    """A shape from the wire; it was not sent where the array still has it."""
    return array.shape if sent is None else tuple(int(length) for length in sent)
