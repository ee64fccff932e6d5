"""Numbers of 16 bits."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from rayfed_kd.protocol import Array, Codec, CodecError, Coded, TravellingPart
from rayfed_kd.protocol.message_codec import floats

LARGEST = {"fp16": 65504.0, "bf16": float(np.uint32(0x7F7F0000).view(np.float32))}


class Cast(Codec):
    """Rounds to the nearest number of 16 bits; of two as near, to the even one.

    `fp16` has 11 significant bits between 6e-5 and 65,504, `bf16` 8 in the whole range of float32.
    """

    def __init__(self, *, to: Annotated[Literal["fp16", "bf16"], Field(description="the type")]) -> None:
        self.to = to

    def encode(self, array: Array, part: TravellingPart) -> Coded:
        rounded, beyond = self._rounded(floats(array))
        if beyond:
            raise CodecError(f"{beyond} of {array.size} numbers are beyond {self.to}'s {LARGEST[self.to]:g}")
        return Coded(rounded)

    def decode(self, coded: Coded, part: TravellingPart) -> Array:
        if self.to == "fp16":
            return coded.array.astype(np.float32)
        widened: Array = (coded.array.astype(np.uint32) << 16).view(np.float32)
        return widened

    def _rounded(self, numbers: np.ndarray[Any, np.dtype[np.float32]]) -> tuple[Array, int]:
        """The numbers in 16 bits, and how many of them are infinite there."""
        if self.to == "fp16":
            with np.errstate(over="ignore"):
                half = numbers.astype(np.float16)
            return half, int(np.isinf(half).sum())
        bits = np.ascontiguousarray(numbers).view(np.uint32)
        # Half of the last place that stays, less one where that place is even: carries round to the nearest.
        upper = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        return upper, int((upper & 0x7FFF == 0x7F80).sum())
