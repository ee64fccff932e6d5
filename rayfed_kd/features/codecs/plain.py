"""Differences from what was received, numbers of fewer bits, and bytes without their redundancy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import pyarrow
from pydantic import Field

from rayfed_kd.protocol import Array, Codec, CodecError, Coded, Kind, TravellingPart
from rayfed_kd.protocol.message_codec import VECTORS, floats


class Difference(Codec):
    """What the client changed: the part less that of the message which it answers, as it was decoded."""

    differs = True

    def encode(self, array: Array, part: TravellingPart) -> Coded:
        return Coded(floats(array) - self._received(part))

    def decode(self, coded: Coded, part: TravellingPart) -> Array:
        return self._received(part) + coded.array

    def _received(self, part: TravellingPart) -> Array:
        if part.received is None:
            raise CodecError(f"the message that is answered has no part {part.name} of {part.size} numbers")
        return part.received

    def refuses(self, kind: Kind) -> str | None:
        return None if kind in VECTORS else f"{kind} that go down are of other samples, or of all clients"


class Zstd(Codec):
    """Zstandard, without loss, of what the codec before it gives; `level` 1 is the fastest."""

    lossless = True

    def __init__(
        self, *, level: Annotated[int, Field(ge=1, le=22, description="from fast to small")] = 3
    ) -> None:
        self.level = level

    def encode(self, array: Array, part: TravellingPart) -> Coded:
        packed = pyarrow.Codec("zstd", self.level).compress(
            np.ascontiguousarray(array).tobytes(), asbytes=True
        )
        # NumPy's own short name of the type, as <f4.
        return Coded(
            np.frombuffer(packed, np.uint8), {"type": np.frombuffer(array.dtype.str.encode(), np.uint8)}
        )

    def decode(self, coded: Coded, part: TravellingPart) -> Array:
        dtype = np.dtype(coded.side["type"].tobytes().decode())
        size = part.size * dtype.itemsize
        packed = np.ascontiguousarray(coded.array).tobytes()
        plain = pyarrow.Codec("zstd").decompress(packed, size, asbytes=True)
        return np.frombuffer(plain, dtype).reshape(part.shape)


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
        return np.asarray((coded.array.astype(np.uint32) << 16).view(np.float32))

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
