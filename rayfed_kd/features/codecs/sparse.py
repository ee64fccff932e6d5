"""A share of the numbers, with their places; the others come out as 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from rayfed_kd.features.codecs.quantisers import pack_bits, unpack_bits
from rayfed_kd.protocol import Array, Codec, Coded, Kind, TravellingPart
from rayfed_kd.protocol.message_codec import VECTORS, floats

Places = np.ndarray[Any, np.dtype[np.int64]]
Share = Annotated[float, Field(gt=0, le=1, description="share of the numbers that is sent; at least one is")]


class _Sparse(Codec):
    """What both have in common: the numbers at some places go on to the next codec."""

    share: float
    for_changes = True

    def refuses(self, kind: Kind) -> str | None:
        return None if kind in VECTORS else f"{kind} that are left out would come out as 0"

    def encode(self, array: Array, part: TravellingPart) -> Coded:
        numbers = floats(array).ravel()
        count = max(1, round(self.share * numbers.size))
        return Coded(numbers) if count == numbers.size else self._chosen(numbers, count, part)

    def decode(self, coded: Coded, part: TravellingPart) -> Array:
        if not coded.side:
            return coded.array.reshape(part.shape)
        array = np.zeros(part.size, coded.array.dtype)
        array[self._read(coded.side, part.size, coded.array.size)] = coded.array
        return array.reshape(part.shape)

    def _chosen(self, numbers: Array, count: int, part: TravellingPart) -> Coded:
        """`count` of the numbers, fewer than all, and what says where they lie."""
        raise NotImplementedError

    def _read(self, side: Mapping[str, Array], size: int, count: int) -> Places:
        """Where they lie."""
        raise NotImplementedError


class TopK(_Sparse):
    """The numbers that are largest in absolute value, of all tensors together; of equal ones the first.

    Their places take ceil(log2 n) bits each, or one bit for every number if that is less. It is biased: use
    it on a difference, with `feedback: true` (Stich et al. 2018, arXiv 1809.07599).
    """

    def __init__(self, *, share: Share) -> None:
        self.share = share

    def _chosen(self, numbers: Array, count: int, part: TravellingPart) -> Coded:
        sizes = np.abs(numbers)
        least = np.partition(sizes, numbers.size - count)[numbers.size - count]
        larger, equal = np.flatnonzero(sizes > least), np.flatnonzero(sizes == least)
        places = np.sort(np.concatenate([larger, equal[: count - larger.size]]))
        return Coded(numbers[places], {"places": self._packed(places, numbers.size)})

    def _packed(self, places: Places, size: int) -> Array:
        bits = _bits(size)
        if places.size * bits <= size:
            return pack_bits(places.astype(np.uint32), bits)
        chosen = np.zeros(size, bool)
        chosen[places] = True
        return np.packbits(chosen)

    def _read(self, side: Mapping[str, Array], size: int, count: int) -> Places:
        packed, bits = side["places"], _bits(size)
        if count * bits <= size:
            return unpack_bits(packed, count, bits).astype(np.int64)
        return np.flatnonzero(np.unpackbits(packed, count=size))


def _bits(size: int) -> int:
    return max(1, (size - 1).bit_length())  # ceil(log2 size)


class RandomK(_Sparse):
    """Numbers at random places, which a seed of 8 bytes says, times n/k, so that the mean is the number.

    `unbiased: false` sends them as they are, for `feedback: true`.
    """

    def __init__(
        self, *, share: Share, unbiased: Annotated[bool, Field(description="times n/k")] = True
    ) -> None:
        self.share, self.unbiased = share, unbiased

    def _chosen(self, numbers: Array, count: int, part: TravellingPart) -> Coded:
        side = {"seed": part.random().integers(2**63, size=1, dtype=np.uint64)}
        values = numbers[self._read(side, numbers.size, count)]
        if self.unbiased:
            values = values * np.float32(numbers.size / count)
        return Coded(values, side)

    def _read(self, side: Mapping[str, Array], size: int, count: int) -> Places:
        stream = np.random.Generator(np.random.PCG64(int(side["seed"][0])))
        return np.sort(stream.choice(size, count, replace=False, shuffle=False))
