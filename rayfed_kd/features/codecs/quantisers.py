"""Numbers of a few bits, a scale for each group of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from rayfed_kd.protocol import Array, Codec, Coded, Kind, TravellingPart
from rayfed_kd.protocol.message_codec import VECTORS, floats

By = Annotated[Literal["tensor", "channel"], Field(description="which numbers share a scale")]
Sizes = np.ndarray[Any, np.dtype[np.int64]]


class Uniform(Codec):
    """Rounds to one of 2^bits equally distant levels between a group's least and largest number, at random.

    Up or down so that the mean is the number. 32 bits change nothing.
    """

    unbiased = True

    def __init__(
        self, *, bits: Annotated[int, Field(ge=1, le=32, description="of each number, k")], by: By = "tensor"
    ) -> None:
        self.bits, self.by = bits, by

    def encode(self, array: Array, part: TravellingPart) -> Coded:
        numbers = floats(array).ravel()
        if self.bits == 32:
            return Coded(array)
        sizes = group_sizes(part, self.by)
        low = np.minimum.reduceat(numbers, group_starts(sizes))
        high = np.maximum.reduceat(numbers, group_starts(sizes))
        lows, steps = self._levels(low, high, sizes)
        # A group of equal numbers has no levels between them: its bounds say all.
        spread = steps > 0
        places = (numbers[spread] - lows[spread]) / steps[spread]
        levels = np.floor(places + part.random().random(len(places))).clip(0, 2**self.bits - 1)
        return Coded(pack_bits(levels.astype(np.uint32), self.bits), {"low": low, "high": high})

    def decode(self, coded: Coded, part: TravellingPart) -> Array:
        if self.bits == 32:
            return coded.array
        lows, steps = self._levels(coded.side["low"], coded.side["high"], group_sizes(part, self.by))
        spread = steps > 0
        levels = unpack_bits(coded.array, int(spread.sum()), self.bits)
        lows[spread] += levels * steps[spread]
        return lows.astype(np.float32).reshape(part.shape)

    def _levels(self, low: Array, high: Array, sizes: Array) -> tuple[Array, Array]:
        """Each number's lowest level and distance of levels, in float64, so that bounds come out exactly."""
        steps = (high.astype(np.float64) - low) / (2**self.bits - 1)
        return np.repeat(low.astype(np.float64), sizes), np.repeat(steps, sizes)

    def refuses(self, kind: Kind) -> str | None:
        if self.bits == 1 and kind not in VECTORS:
            return f"one bit says of {kind} only which are the larger ones; expected bits of 2 or more"
        return super().refuses(kind)


class Qsgd(Codec):
    """QSGD: a sign and one of `levels` + 1 shares of the group's norm, at random.

    Up or down so that the mean is the number. Every number takes 1 + ceil(log2(levels + 1)) bits; the paper
    (Alistarh et al. 2017, arXiv 1610.02132) has Elias codes, which take fewer where most numbers are 0.
    """

    unbiased = True

    def __init__(
        self, *, levels: Annotated[int, Field(ge=1, le=2**20, description="beside 0, s")], by: By = "tensor"
    ) -> None:
        self.levels, self.by = levels, by

    @property
    def _bits(self) -> int:
        return self.levels.bit_length()  # ceil(log2(levels + 1))

    def encode(self, array: Array, part: TravellingPart) -> Coded:
        numbers, sizes = floats(array).ravel(), group_sizes(part, self.by)
        squares = np.add.reduceat(np.square(numbers, dtype=np.float64), group_starts(sizes))
        largest = np.maximum.reduceat(np.abs(numbers), group_starts(sizes))
        # A norm rounded down to below its largest number would leave that one no level.
        norms = np.maximum(np.sqrt(squares).astype(np.float32), largest)
        scales = np.repeat(norms.astype(np.float64), sizes)
        places = np.abs(numbers) * np.divide(self.levels, scales, out=np.zeros_like(scales), where=scales > 0)
        shares = np.floor(places + part.random().random(len(places))).clip(0, self.levels).astype(np.uint32)
        signs = (numbers < 0).astype(np.uint32) << np.uint32(self._bits)
        return Coded(pack_bits(signs | shares, self._bits + 1), {"norm": norms})

    def decode(self, coded: Coded, part: TravellingPart) -> Array:
        words = unpack_bits(coded.array, part.size, self._bits + 1)
        shares = (words & (2**self._bits - 1)) / self.levels
        scales = np.repeat(coded.side["norm"].astype(np.float64), group_sizes(part, self.by))
        signs = 1 - 2.0 * (words >> self._bits)
        return np.asarray((signs * shares * scales).astype(np.float32).reshape(part.shape))

    def refuses(self, kind: Kind) -> str | None:
        if self.levels == 1 and kind not in VECTORS:
            return f"one level leaves of {kind} little but signs; expected levels of 2 or more"
        return super().refuses(kind)


class Sign(Codec):
    """A sign of one bit, and for each group the mean of its absolute values; 0 counts as positive.

    The compression of EF-signSGD (Karimireddy et al. 2019, arXiv 1901.09847). It is biased: use it with
    `feedback: true`.
    """

    for_changes = True

    def __init__(self, *, by: By = "tensor") -> None:
        self.by = by

    def encode(self, array: Array, part: TravellingPart) -> Coded:
        numbers, sizes = floats(array).ravel(), group_sizes(part, self.by)
        sums = np.add.reduceat(np.abs(numbers, dtype=np.float64), group_starts(sizes))
        scale = (sums / sizes).astype(np.float32)
        return Coded(np.packbits(numbers >= 0), {"scale": scale})

    def decode(self, coded: Coded, part: TravellingPart) -> Array:
        positive = np.unpackbits(coded.array, count=part.size).astype(bool)
        scales = np.repeat(coded.side["scale"], group_sizes(part, self.by))
        return np.where(positive, scales, -scales).reshape(part.shape)

    def refuses(self, kind: Kind) -> str | None:
        return None if kind in VECTORS else f"one bit a number says too little of {kind}"


def group_sizes(part: TravellingPart, by: By) -> Sizes:
    """How many numbers each group has, in the order of the array.

    Args:
        by: tensor: each tensor of a vector, or the whole array where its tensors are not known. channel: each
            index of a tensor's first axis; a tensor of one axis is one group.
    """
    shapes = [part.shape] if part.layout is None else [tensor.shape for tensor, *_ in part.layout.placed()]
    sizes = []
    for shape in shapes:
        size = int(np.prod(shape, dtype=np.int64))
        rows = shape[0] if by == "channel" and len(shape) > 1 else 1
        sizes += [size // rows] * rows
    return np.array(sizes, np.int64)


def group_starts(sizes: Sizes) -> Sizes:
    """The first index of each group, for `reduceat`."""
    return np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)


Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Whole = np.ndarray[Any, np.dtype[np.uint32]]

WHOLE_TYPES = {8: "<u1", 16: "<u2", 32: "<u4"}


def pack_bits(numbers: Whole, bits: int) -> Bytes:
    """Numbers below 2^bits, [n], as ceil(n bits / 8) bytes.

    Args:
        bits: 1 to 32.
    """
    if bits in WHOLE_TYPES:
        return np.asarray(numbers.astype(WHOLE_TYPES[bits]).view(np.uint8))
    places = numbers.astype("<u4").view(np.uint8).reshape(-1, 4)
    singles = np.unpackbits(places, axis=1, count=bits, bitorder="little")
    return np.packbits(singles, bitorder="little")


def unpack_bits(packed: Bytes, count: int, bits: int) -> Whole:
    """The `count` numbers that `pack_bits` packed."""
    if bits in WHOLE_TYPES:
        return np.ascontiguousarray(packed).view(WHOLE_TYPES[bits]).astype(np.uint32)
    singles = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(-1, bits)
    whole = np.zeros((count, 4), np.uint8)
    whole[:, : -(-bits // 8)] = np.packbits(singles, axis=1, bitorder="little")
    numbers: Whole = whole.view("<u4").ravel()
    return numbers
