"""Differences from what was received, numbers of fewer bits, and bytes without their redundancy."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import pyarrow
import torch
from pydantic import Field

from rayfed_kd.protocol import Array, Codec, CodecError, Coded, Kind, TravellingPart, to_tensor
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


TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Cast(Codec):
    """Rounds to the nearest number of 16 bits; of two as near, to the even one.

    `fp16` has 11 significant bits between 6e-5 and 65,504, `bf16` 8 in the whole range of float32.
    """

    def __init__(self, *, to: Annotated[Literal["fp16", "bf16"], Field(description="the type")]) -> None:
        self.to = to

    def encode(self, array: Array, part: TravellingPart) -> Coded:
        rounded = to_tensor(floats(array)).to(TYPES[self.to])
        if beyond := int(torch.isinf(rounded).sum()):
            largest = torch.finfo(rounded.dtype).max
            raise CodecError(f"{beyond} of {array.size} numbers are beyond {self.to}'s {largest:g}")
        return Coded((rounded if self.to == "fp16" else rounded.view(torch.uint16)).numpy())

    def decode(self, coded: Coded, part: TravellingPart) -> Array:
        if self.to == "fp16":
            return coded.array.astype(np.float32)
        return np.asarray((coded.array.astype(np.uint32) << 16).view(np.float32))
