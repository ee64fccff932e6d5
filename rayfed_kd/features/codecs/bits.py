"""Whole numbers of a few bits each as bytes, without a gap between them."""

from __future__ import annotations

from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Whole = np.ndarray[Any, np.dtype[np.uint32]]

WHOLE_TYPES = {8: "<u1", 16: "<u2", 32: "<u4"}
BLOCK = (
    2**18
)  # numbers at a time: their single bits take a byte each; a multiple of 8, so blocks end with a byte


def pack_bits(numbers: Whole, bits: int) -> Bytes:
    """Numbers below 2^bits, [n], as ceil(n bits / 8) bytes.

    Args:
        bits: 1 to 32.
    """
    if bits in WHOLE_TYPES:
        whole: Bytes = numbers.astype(WHOLE_TYPES[bits]).view(np.uint8)
        return whole
    places = np.arange(bits, dtype=np.uint32)
    blocks = [numbers[start : start + BLOCK, None] >> places & 1 for start in range(0, len(numbers), BLOCK)]
    packed = [np.packbits(block.astype(np.uint8), bitorder="little") for block in blocks]
    return np.concatenate(packed) if packed else np.empty(0, np.uint8)


def unpack_bits(packed: Bytes, count: int, bits: int) -> Whole:
    """The `count` numbers that `pack_bits` packed."""
    if bits in WHOLE_TYPES:
        return np.ascontiguousarray(packed).view(WHOLE_TYPES[bits]).astype(np.uint32)
    numbers = np.zeros(count, np.uint32)
    for start in range(0, count, BLOCK):
        block = numbers[start : start + BLOCK]
        own = packed[start * bits // 8 : -(-(start + len(block)) * bits // 8)]
        singles = np.unpackbits(own, count=len(block) * bits, bitorder="little").reshape(-1, bits)
        for place in range(bits):
            block |= singles[:, place].astype(np.uint32) << place
    return numbers
