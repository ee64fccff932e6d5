"""What a codec is: a class that makes one part of a message or reply smaller, and makes the part again.

This one sends numbers as float16:

    class Half(Codec):
        def encode(self, array, part):
            return Coded(array.astype(np.float16))

        def decode(self, coded, part):
            return coded.array.astype(np.float32)

A recipe names a codec, or a chain of them, for each direction and kind of part: `codec.up.weights:
[difference, my_codec:Half, zstd]`. Each codec of a chain encodes the array of the one before it;
rayfed_kd/features/codecs/coded_wire.py runs the chains. Parts declared as `Simulated` would not travel, so
they are left as they are, as are looks at clients for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from rayfed_kd.errors import RunError
from rayfed_kd.models.vectors import Layout
from rayfed_kd.protocol.declaration import Kind, VectorKind
from rayfed_kd.protocol.messages import Array
from rayfed_kd.recipe.seeds import numpy_stream

Direction = Literal["up", "down"]
# Kinds of parts that are a model's vector, or the first or last layers of one.
VECTORS: tuple[Kind, ...] = get_args(VectorKind)
# Kinds whose numbers may come out changed; classes, ids, counts and scalars must arrive as they are.
INEXACT: tuple[Kind, ...] = (*VECTORS, "logits", "features", "prototypes")


class CodecError(RunError):
    """A codec cannot encode this array."""


@dataclass(frozen=True)
class TravellingPart:
    """What a codec knows of the array that it encodes, and of the part that the array is made of.

    Attributes:
        name: of the part.
        kind: of the part.
        direction: whether it goes up or down.
        shape: of the array that `encode` gets, and that `decode` must give again.
        layout: the tensors of a flat vector; None where the array is no vector, or not one of a model.
        received: for a reply, the part of the same name in the message that it answers, as the client
            decoded it, if that part has the array's shape; else None.
        memory: what `encode` gave to remember when this client last sent this part; empty the first time.
        stream: what the codec's random stream is derived from.
    """

    name: str
    kind: Kind
    direction: Direction
    shape: tuple[int, ...]
    layout: Layout | None = None
    received: Array | None = None
    memory: Mapping[str, Array] = field(default_factory=dict)
    stream: tuple[int, tuple[str | int, ...]] = (0, ())

    def random(self) -> np.random.Generator:
        """The stream of this codec, client, participation and part; the same each time it is asked for.

        For `encode` alone: a receiver does not know it.
        """
        seed, path = self.stream
        return numpy_stream(seed, "codec", *path)

    @property
    def size(self) -> int:
        """How many numbers the array has that `encode` gets."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Coded:
    """What a codec makes of an array.

    Attributes:
        array: what the next codec of the chain encodes, or what travels.
        side: more arrays that travel, by names of the codec's own, as indices and scales.
        memory: what this client's codec remembers until it next sends the part; it does not travel. Only for
            codecs that say `remembers`.
        logged: numbers for the table `rounds`, which has their means over clients.
    """

    array: Array
    side: Mapping[str, Array] = field(default_factory=dict)
    memory: Mapping[str, Array] = field(default_factory=dict)
    logged: Mapping[str, float] = field(default_factory=dict)


class Codec:
    """Base of all codecs. Options are the keyword-only parameters of its constructor; it holds nothing else.

    Attributes:
        lossless: `decode` gives every bit of what `encode` got.
        unbiased: `decode` gives on average what `encode` got, so error feedback has nothing to make up for.
        remembers: `encode` reads and gives memory, which only a client has, so it goes up alone.
        differs: it needs `part.received`, so it goes up alone.
        for_changes: of whole weights it leaves little, so a run's header warns where no difference stands
            before it.
    """

    lossless: ClassVar[bool] = False
    unbiased: bool = False
    remembers: ClassVar[bool] = False
    differs: ClassVar[bool] = False
    for_changes: ClassVar[bool] = False

    def encode(self, array: Array, part: TravellingPart) -> Coded:
        """What is sent for an array.

        Args:
            array: not empty, all of it finite; read-only.
            part: what is known of it.
        Raises: CodecError if the array cannot be encoded: a reply is bad then, and a message ends the run.
        """
        return Coded(array)

    def decode(self, coded: Coded, part: TravellingPart) -> Array:
        """The array again, of `part.shape` and the dtype that it had.

        Args:
            coded: `array` and `side` as `encode` gave them, `array` perhaps changed by later codecs that are
                lossy; read-only, possibly shared memory. The rest of it is empty.
            part: as `encode` got it, without memory and without random stream.
        """
        return coded.array

    def layout_behind(self, side: Mapping[str, Array], part: TravellingPart) -> Layout | None:
        """The tensors of `Coded.array`, which the codecs behind this one may treat each by itself.

        Used only where that array is a vector of their length. Receivers ask, too.

        Args:
            side: as `encode` gave it.
            part: as `encode` got it, without memory and without random stream.
        """
        return part.layout

    def refuses(self, kind: Kind) -> str | None:
        """Why this codec is not for parts of that kind; None: it is. Asked before the first round."""
        if self.lossless or kind in INEXACT:
            return None
        return f"it changes numbers, and {kind} must arrive as they are"


def floats(array: Array) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The array as float32, which most codecs need: itself, or wider numbers of a float16 one.

    Raises: CodecError if it has others.
    """
    if array.dtype == np.float16:
        return array.astype(np.float32)
    if array.dtype != np.float32:
        raise CodecError(
            f"it takes float32 numbers, got {array.dtype}; a codec that packs numbers, as zstd, stands last"
        )
    return array
