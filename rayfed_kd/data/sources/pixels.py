"""Encoded images of any source to arrays of one shape."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError
from pydantic import Field

from rayfed_kd.data.dataset import Array, check_size
from rayfed_kd.data.decoding import decoded
from rayfed_kd.errors import DataError

GREY = ("1", "L", "LA")
SIXTEEN_BITS = re.compile(r";16[BLN]|\('RGB', (?!255\))\d{3,}\)")  # in Pillow's words for how they are stored
STRETCH = 100
# Of broken files: Pillow tells of a PNG with a SyntaxError, of others with what their decoders stumble over.
BROKEN = (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError)
MOST_PIXELS = 1 << 26  # of one image; the largest of the named sets have 2^10
MOST_SIDE = 4096

Size = Annotated[
    int | None, Field(ge=1, le=MOST_SIDE, description="side of the square images; null: as the files are")
]
Fit = Annotated[
    Literal["crop", "stretch"],
    Field(description="the shorter side gets `size` and the middle is cut out, or both sides get it"),
]
Colour = Annotated[Literal["rgb", "grey"], Field(description="three channels or one")]
AnyColour = Annotated[
    Literal["rgb", "grey"] | None, Field(description="three channels or one; null: as the images have")
]


class Fitting(NamedTuple):
    """What images are made into; as they are by default.

    Attributes:
        size: side of the squares; None: all images are of one size already.
        fit: `crop` or `stretch`.
        colour: `rgb`, `grey`, or None: one channel for grey images, else three.
    """

    size: int | None = None
    fit: str = "crop"
    colour: str | None = None

    def applied(self, pixels: Array) -> Array:
        """One image, [c, h, w] uint8, made into this."""
        if self.size is None and self.colour is None:
            return pixels
        picture = Image.fromarray(pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, 2))
        if self.colour is not None:
            picture = picture.convert("L" if self.colour == "grey" else "RGB")
        if self.size is not None:
            picture = self._resized(picture, self.size)
        fitted = np.asarray(picture)
        return fitted[None] if fitted.ndim == 2 else np.moveaxis(fitted, 2, 0)

    def _resized(self, picture: Image.Image, size: int) -> Image.Image:
        if self.fit == "stretch":
            return picture.resize((size, size), Image.Resampling.BILINEAR)
        scale = size / min(picture.size)
        width, height = (max(size, round(side * scale)) for side in picture.size)
        left, top = (width - size) // 2, (height - size) // 2
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        return picture.crop((left, top, left + size, top + size))


def load_images(
    encoded: Sequence[bytes | Path | None],
    names: Sequence[object],
    fitting: Fitting,
    shape: Sequence[int] = (),
) -> Array:
    """Images as pixels; threads take stretches, since one small image is not worth a hand-over.

    Args:
        encoded: at least one, each the bytes of an image file, or its path.
        names: [n], what messages call the images, as file and row.
        fitting: what they are made into.
        shape: (channels, height, width) that all have; empty: that of the first.

    Returns: [n, c, h, w] uint8.
    Raises: DataError naming an image that cannot be read or is of another size.
    """
    expected = tuple(shape) or fitting.applied(decode_image(encoded[0], names[0])).shape
    check_size(f"{len(encoded)} images", (len(encoded), *expected), 1)
    images = np.empty((len(encoded), *expected), np.uint8)

    def load(start: int) -> None:
        for place, image in enumerate(encoded[start : start + STRETCH], start):
            pixels = fitting.applied(decode_image(image, names[place]))
            if pixels.shape != expected:
                raise DataError(
                    f"{names[place]}: an image of {pixels.shape}; expected {expected} (channels, height, "
                    "width) of all; data.size=32 and data.colour=rgb, where a source has them, make all alike"
                )
            images[place] = pixels

    with ThreadPoolExecutor() as pool:
        starts = range(0, len(encoded), STRETCH)
        for _ in decoded(pool.map(load, starts), len(starts)):  # raises what a thread raised, the first first
            pass
    return images


def decode_image(encoded: bytes | Path | None, where: object) -> Array:
    """Decode an image.

    Args:
        encoded: its bytes, or its file.
        where: what messages call it.
    Returns: [c, h, w] uint8; one channel for grey images, else three.
    Raises: DataError if it is no image of eight bits.
    """
    if encoded is None:
        raise DataError(f"{where}: no image bytes; expected images stored in the file, not paths to them")
    source: Any = io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded
    try:
        with Image.open(source) as picture:
            # More than eight bits: no pixels of 0 to 255. Of colours Pillow would keep the upper eight.
            if picture.mode.startswith(("I", "F")) or SIXTEEN_BITS.search(str(picture.tile)):
                raise DataError(f"{where}: pixels of mode {picture.mode}, expected eight bits a channel")
            frames = getattr(picture, "n_frames", 1)
            if frames > 1 and picture.format != "MPO":  # of phones' pictures the second is a preview
                raise DataError(f"{where}: {frames} frames or pages; expected one image")
            # Known from the header. Pillow decodes not before `convert`, so nothing large has been made yet.
            if picture.width * picture.height > MOST_PIXELS:
                raise DataError(
                    f"{where}: {picture.width} x {picture.height} pixels; expected {MOST_PIXELS:,} at most"
                )
            grey = picture.mode in GREY
            pixels = np.asarray(picture.convert("L" if grey else "RGB"))
    except UnidentifiedImageError:
        raise DataError(f"{where}: no image format that Pillow knows") from None
    except BROKEN as error:
        raise DataError(f"{where}: no readable image ({error})") from None
    return pixels[None] if grey else np.moveaxis(pixels, 2, 0)
