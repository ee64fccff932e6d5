"""Codecs one after another: each encodes the array of the one before it, and decoding goes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rayfed_kd.models.vectors import Layout
from rayfed_kd.protocol.message_codec import Codec, CodecError, Coded, TravellingPart
from rayfed_kd.protocol.messages import Array
from rayfed_kd.protocol.wire import Arrays


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
        first = next((stage for stage in self.stages if stage.codec.differs or stage.codec.for_changes), None)
        return None if first is None or first.codec.differs else first.name

    def encode(self, array: Array, part: TravellingPart) -> EncodedArray:
        """The array's wire form.

        Args:
            array: not empty, finite.
            part: what is known of it; its memory is the chain's.
        Raises: CodecError naming the codec that cannot encode what it gets.
        """
        wire, memory, logged = dict[str, Array](), dict[str, Array](), dict[str, float]()
        steps: list[tuple[TravellingPart, Array, Coded]] = []
        layout = part.layout
        for place, stage in enumerate(self.stages):
            if not array.size:  # an earlier codec needs no numbers; there is nothing more to encode
                break
            facts = self._facts(part, place, array.shape, layout)
            residual = part.memory.get(f"{place}/residual") if stage.feedback else None
            # A residual belongs to one shape: another model's starts from nothing.
            if residual is not None and residual.shape == array.shape:
                array = array + residual
            try:
                coded = stage.codec.encode(_read_only(array), facts)
            except CodecError as error:
                raise CodecError(f"{stage.name}: {error}") from None
            steps.append((facts, array, coded))
            layout = stage.codec.layout_behind(coded.side, facts)
            wire |= {f"{place}.{name}": np.asarray(side) for name, side in coded.side.items()}
            memory |= {f"{place}.{name}": value for name, value in coded.memory.items()}
            if taken := {"damped", *logged} & {*coded.logged}:
                raise CodecError(f"{stage.name}: {min(taken)} is logged already; expected another name")
            logged |= coded.logged
            if coded.array.shape != array.shape:
                wire[f"{place}.shape"] = np.array(array.shape, np.int32)
            array = coded.array
        wire["array"] = np.asarray(array)
        residuals, dampings = self._residuals(steps)
        if residuals:  # also where it is none: the table has the mean over all clients
            logged["damped"] = sum(int(np.count_nonzero(damping < 1)) for damping in dampings.values())
        return EncodedArray(wire | dampings, memory | residuals, logged)

    def _residuals(
        self, steps: list[tuple[TravellingPart, Array, Coded]]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """What receivers do not get, for memory, and dampings, for the wire.

        A residual is what went into a codec less what comes out of it when all is decoded.
        """
        residuals, dampings = dict[str, Array](), dict[str, Array]()
        first = next((place for place, stage in enumerate(self.stages) if stage.feedback), len(steps))
        array = _read_only(steps[-1][2].array)
        for place in range(len(steps) - 1, first - 1, -1):
            facts, before, coded = steps[place]
            array = self.stages[place].codec.decode(Coded(array, coded.side), facts)
            if self.stages[place].feedback:
                damping = _damping(before, array, facts.layout)
                if (damping < 1).any():
                    dampings[f"{place}.damping"] = damping
                    array = _damped(array, damping, facts.layout)
                residuals[f"{place}/residual"] = before - array
        return residuals, dampings

    def decode(self, wire: Arrays, part: TravellingPart) -> Array:
        """The array again."""
        wire = {key: _read_only(sent) for key, sent in wire.items()}
        array, layout = wire["array"], part.layout
        steps = list[tuple[Codec, TravellingPart, Arrays, Array | None]]()
        for place, stage in enumerate(self.stages[: self._used(wire)]):
            prefix = f"{place}."
            side = {key.removeprefix(prefix): value for key, value in wire.items() if key.startswith(prefix)}
            side.pop("shape", None)
            damping = side.pop("damping", None)
            facts = self._facts(part, place, self.shape(wire, place), layout)
            layout = stage.codec.layout_behind(side, facts)
            steps.append((stage.codec, facts, side, damping))
        for codec, facts, side_arrays, damping in reversed(steps):
            array = codec.decode(Coded(array, side_arrays), facts)
            array = array if damping is None else _damped(array, damping, facts.layout)
        return array

    def _used(self, wire: Arrays) -> int:
        """How many codecs encoded anything: none is asked behind one that has left no numbers."""
        if wire["array"].size:
            return len(self.stages)
        # Where the numbers went, the shape changed, and was sent.
        return max((place + 1 for place in range(len(self.stages)) if f"{place}.shape" in wire), default=0)

    def shape(self, wire: Arrays, place: int = 0) -> tuple[int, ...]:
        """Of the array that the codec at `place` got; it was not sent where the array still has it."""
        sent = (
            wire[f"{later}.shape"] for later in range(place, len(self.stages)) if f"{later}.shape" in wire
        )
        shape = next(sent, None)
        return wire["array"].shape if shape is None else tuple(int(length) for length in shape)

    def _facts(
        self, part: TravellingPart, place: int, shape: tuple[int, ...], layout: Layout | None
    ) -> TravellingPart:
        """The facts that the codec at `place` gets.

        Args:
            layout: of what the codec before it gave.
        """
        if layout is not None and shape != (layout.size,):
            layout = None
        received = part.received if part.received is not None and part.received.shape == shape else None
        prefix = f"{place}."
        memory = {k.removeprefix(prefix): value for k, value in part.memory.items() if k.startswith(prefix)}
        seed, path = part.stream
        return replace(
            part, shape=shape, layout=layout, received=received, memory=memory, stream=(seed, (*path, place))
        )


def _read_only(array: Array) -> Array:
    """The same numbers for a codec, which may not change them: they are also the server's, or another's."""
    return np.broadcast_to(array, np.shape(array))  # numpy's read-only view


def _sizes(array: Array, layout: Layout | None) -> Array:
    """How many numbers each tensor has; without a layout the array is one tensor."""
    return np.array([array.size] if layout is None else [stop - start for _, start, stop in layout.placed()])


def _damping(before: Array, after: Array, layout: Layout | None) -> Array:
    """By what each tensor must be multiplied so that its residual is no larger than what was to be sent.

    Coarse rounding behind a codec with feedback may be off by more than the tensor itself. The next residual
    is then larger than this one, and grows from round to round without an end. Multiplied by <before, after>
    / |after|^2, the tensor is the nearest to `before` of all its multiples, 0 among them.

    Args:
        before: what the codec with feedback got.
        after: what is decoded of it, as long.
    Returns: [tensors] float32; 1 where the residual is no larger without.
    """
    sizes = _sizes(before, layout)
    starts = np.cumsum(sizes) - sizes
    exact, sent = before.ravel().astype(np.float64), after.ravel().astype(np.float64)
    shared = np.add.reduceat(exact * sent, starts)
    square = np.add.reduceat(np.square(sent), starts)
    # |before - after|^2 > |before|^2, multiplied out.
    larger = 2 * shared < square
    damping: Array = np.divide(shared.clip(0), square, out=np.ones_like(square), where=larger)
    return damping.astype(np.float32)


def _damped(array: Array, damping: Array, layout: Layout | None) -> Array:
    damped: Array = array.ravel() * np.repeat(damping, _sizes(array, layout))
    return damped.reshape(array.shape)
