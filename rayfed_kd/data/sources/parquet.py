"""Images in Parquet, in the layout of Hugging Face data sets: struct(bytes, path) and an integer label."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, UnidentifiedImageError
from pydantic import Field

from rayfed_kd.data.dataset import Array, RawDataset, Source, Split
from rayfed_kd.data.decoding import decoded
from rayfed_kd.data.sources.classes import Labels, by_value, number_classes
from rayfed_kd.data.sources.columns import CATEGORIES, meaning, plain_table
from rayfed_kd.errors import DataError, in_words, nearest, shortened, shown
from rayfed_kd.files import path_fault
from rayfed_kd.recipe.roles import data_source

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label")
TRAIN, TEST, VALIDATION = "train-*.parquet", "test-*.parquet", "validation-*.parquet"
GREY = ("1", "L", "LA")
DEEP = ("I", "F")  # more than eight bits: no pixels of 0 to 255
STRETCH = 1000
# Of broken files: Pillow tells of a PNG with a SyntaxError, of others with what their decoders stumble over.
BROKEN = (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError)
MOST_PIXELS = 1 << 26  # of one image; the largest of the named sets have 2^10


@data_source
def parquet(
    folder: Path,
    *,
    train: Annotated[
        str, Field(min_length=1, description="path or glob, below the folder or absolute")
    ] = TRAIN,
    test: Annotated[
        str | None, Field(min_length=1, description="path or glob of the test files; null: none")
    ] = TEST,
    image_column: Annotated[str | None, Field(description="null: image or img")] = None,
    label_column: Annotated[str | None, Field(description="null: label, labels or fine_label")] = None,
) -> Source:
    """Any Parquet files in the Hugging Face image layout; the options stand in the signature.

    The default patterns are looked for below `data.folder`, then in its folder `data`. Without files of the
    default test pattern there is no official test set; a pattern that was asked for must name some.
    """
    if train == TRAIN and not any(folder.glob(TRAIN)) and any((folder / "data").glob(TRAIN)):
        folder = folder / "data"  # as data sets lie in repositories of Hugging Face
    train_files = files_of(folder, train, "data.train")
    test_files = sorted(folder.glob(TEST)) if test == TEST else []
    if test not in (None, TEST):
        test_files = files_of(folder, test, "data.test")
    image_columns = IMAGE_COLUMNS if image_column is None else (image_column,)
    label_columns = LABEL_COLUMNS if label_column is None else (label_column,)

    unused = [file for file in folder.glob(VALIDATION) if file not in (*train_files, *test_files)]

    def decode() -> RawDataset:
        splits, names = decode_files((train_files, test_files), image_columns, label_columns)
        notes = [f"{VALIDATION} is not used; data.test={VALIDATION} makes it the test set"] if unused else []
        if names is None:
            splits, names, more = _numbered(splits)
            notes += more
        return RawDataset(*splits, names, notes=tuple(notes))

    # The number of training files is part of the cache key, as the same files may be divided otherwise
    # into train and test.
    settings = {"training files": len(train_files), "unused": len(unused)}
    return Source((*train_files, *test_files), settings, decode)


def _numbered(
    splits: tuple[Split, Split | None],
) -> tuple[tuple[Split, Split | None], tuple[str, ...], list[str]]:
    """The same samples where the schema has no names: classes are numbered by the labels in training."""
    parts, there = list[Labels](), [split for split in splits if split is not None]
    for split, where in zip(there, ("training files", "test files"), strict=False):
        # Of several files some may have whole numbers and some texts.
        labels = split.labels if split.labels.dtype == np.int64 else split.labels.astype(str)
        distinct, places = np.unique(labels, return_inverse=True)
        parts.append(Labels(where, distinct.tolist(), places))
    codes, names, notes = number_classes(parts)
    numbered = [Split(split.images, own) for split, own in zip(there, codes, strict=True)]
    return (numbered[0], numbered[1] if len(numbered) > 1 else None), names, notes


def files_of(folder: Path, pattern: str, option: str) -> list[Path]:
    """Find the files that a pattern names.

    Args:
        folder: where a relative pattern starts.
        pattern: a path or a glob; an absolute one stands for itself.
        option: the recipe's key, for the message.
    Returns: at least one file, ascending.
    Raises: DataError if there is none.
    """
    if fault := path_fault(pattern):
        raise DataError(f"{option}: {fault}")
    path = folder / pattern  # an absolute pattern stands for itself
    if path.is_file():
        return [path]
    base = Path(path.anchor) if Path(pattern).is_absolute() else folder
    try:
        files = sorted(file for file in base.glob(str(path.relative_to(base))) if file.is_file())
    except ValueError as error:  # of `a**`, for example
        raise DataError(f"{option} = {shown(pattern)}: {error}") from None
    if not files:
        below = sorted(base.glob("*/*.parquet"))
        hint = f" There are {in_words([str(file.relative_to(base)) for file in below[:3]])}." if below else ""
        raise DataError(
            f"{option} = {shown(pattern)} names no file in {folder.resolve()}; expected the path or glob of "
            f"Parquet files below data.folder, or an absolute one.{hint}"
        )
    return files


def decode_files(
    files: tuple[Sequence[Path], Sequence[Path]], image_columns: Sequence[str], label_columns: Sequence[str]
) -> tuple[tuple[Split, Split | None], tuple[str, ...] | None]:
    """Images and labels of the training and the test files, and the class names in the schema, if any.

    Args:
        files: training files, test files (may be empty).
        image_columns, label_columns: the names to look for, the first that is there counts.
    """
    train, names = _read(files[0], image_columns, label_columns)
    test = _read(files[1], image_columns, label_columns)[0] if files[1] else None
    return (train, test), names


def _read(
    files: Sequence[Path], image_columns: Sequence[str], label_columns: Sequence[str]
) -> tuple[Split, tuple[str, ...] | None]:
    images: list[Array] = []
    labels: list[Array] = []
    names = None
    for file in files:
        image_column, label_column, table = _table(file, image_columns, label_columns)
        names = names or _class_names(file, table.schema, label_column)
        if table.num_rows == 0:
            continue
        images.append(_pixels(file, table.column(image_column)))
        labels.append(_labels(file, label_column, table.column(label_column)))
        if images[-1].shape[1:] != images[0].shape[1:]:
            raise DataError(
                f"{file}: images are {images[-1].shape[1:]}, those of the files before are "
                f"{images[0].shape[1:]} (channels, height, width); expected one size"
            )
    if not images:
        raise DataError(f"{files[0]}: no rows")
    return Split(np.concatenate(images), np.concatenate(labels)), names


def _table(
    file: Path, image_columns: Sequence[str], label_columns: Sequence[str]
) -> tuple[str, str, pa.Table]:
    """The names of the image and label column, and a table of these two."""
    try:
        with pq.ParquetFile(file) as stored:
            columns = stored.schema_arrow.names
            image = _column(file, columns, image_columns, "data.image_column")
            label = _column(file, columns, label_columns, "data.label_column")
            return image, label, stored.read(columns=[image, label])
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: a name that is no UTF-8
        raise DataError(f"{file}: not readable as Parquet ({shortened(str(error), 300)})") from None


def _column(file: Path, columns: Sequence[str], expected: Sequence[str], option: str) -> str:
    for name in expected:
        if name in columns:
            return name
    near = nearest(expected[0], columns)
    hint = f" Did you mean {near}?" if near else ""
    raise DataError(
        f"{file}: the columns are {', '.join(columns)}; expected {' or '.join(expected)} "
        f"(data.name: parquet takes any other by {option}).{hint}"
    )


def _class_names(file: Path, schema: pa.Schema, column: str) -> tuple[str, ...] | None:
    """From the metadata that Hugging Face writes beside the schema."""
    raw = (schema.metadata or {}).get(b"huggingface")
    if raw is None:
        return None
    try:
        names = json.loads(raw)["info"]["features"][column].get("names")
    except (KeyError, TypeError):  # another form, without names
        return None
    except (ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"{file}: its metadata `huggingface` is damaged ({shortened(str(error))})") from None
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise DataError(
            f"{file}: its metadata `huggingface` is damaged: names of classes are no list of texts"
        )
    return tuple(names) if names else None


def _labels(file: Path, name: str, column: pa.ChunkedArray) -> Array:
    """[n] int64; of other labels than whole numbers their texts, as objects."""
    plain = plain_table(pa.table({name: column}))
    what, values = meaning(plain.schema.field(0)), plain.column(0)
    if what not in (*CATEGORIES, "numbers"):
        raise DataError(f"{file}: column {name} holds {what}, expected texts or whole numbers as labels")
    if values.null_count:
        raise DataError(f"{file}: {values.null_count} of {len(values)} rows have no {name}")
    if pa.types.is_integer(values.type):
        labels: Array = values.to_numpy().astype(np.int64)
        return labels
    return np.array([str(by_value(value)) for value in values.to_pylist()], object)


def _pixels(file: Path, column: pa.ChunkedArray) -> Array:
    encoded = column.combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):  # older Arrow keeps the chunks of a struct
        encoded = pa.concat_arrays(encoded.chunks)
    if pa.types.is_struct(encoded.type) and encoded.type.get_field_index("bytes") >= 0:
        encoded = encoded.field("bytes")
    # Of a text Pillow would open the file that it names.
    if str(encoded.type) not in ("binary", "large_binary", "binary_view"):
        raise DataError(
            f"{file}: the image column is {encoded.type}, expected struct(bytes, path), the bytes binary, or "
            "binary"
        )
    pictures = decode_images(encoded.to_pylist(), str(file))
    shapes = {picture.shape for picture in pictures}
    if len(shapes) != 1:
        raise DataError(
            f"{file}: images of {len(shapes)} sizes or channel counts, expected one: {sorted(shapes)[:4]}"
        )
    return np.stack(pictures)


def decode_images(encoded: Sequence[bytes | Path | None], origin: str) -> list[Array]:
    """Each decoded, in order; threads take stretches, since one small image is not worth a hand-over.

    Args:
        encoded: the images' bytes, or their files.
        origin: the file that the bytes come from, for messages.
    """

    def stretch(start: int) -> list[Array]:
        part = encoded[start : start + STRETCH]
        return [decode_image(one, f"{origin}, row {row}") for row, one in enumerate(part, start)]

    with ThreadPoolExecutor() as pool:
        starts = range(0, len(encoded), STRETCH)
        stretches = decoded(pool.map(stretch, starts), len(starts))
        return [picture for pictures in stretches for picture in pictures]


def decode_image(encoded: bytes | Path | None, where: str) -> Array:
    """Decode an image.

    Args:
        encoded: its bytes, or its file.
        where: file and row, for messages about bytes.
    Returns: [c, h, w] uint8; one channel for grey images, else three.
    Raises: DataError, naming the file or `where`, if it is no image of eight bits.
    """
    if encoded is None:
        raise DataError(f"{where}: no image bytes; expected images stored in the file, not paths to them")
    source: Any = io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded
    where = where if isinstance(encoded, bytes) else str(encoded)
    try:
        with Image.open(source) as picture:
            if picture.mode.startswith(DEEP):
                raise DataError(f"{where}: pixels of mode {picture.mode}, expected eight bits a channel")
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
