"""Shards as files have them: Parquet and Arrow of Hugging Face's `datasets`, and tar files of WebDataset."""

from __future__ import annotations

import json
import re
import tarfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayfed_kd.data.dataset import Array
from rayfed_kd.data.sources.classes import by_value
from rayfed_kd.data.sources.columns import plain_table
from rayfed_kd.data.sources.image_tree import SUFFIXES
from rayfed_kd.data.sources.tables import class_labels
from rayfed_kd.errors import DataError, did_you_mean, in_words, shortened

Names = tuple[str, ...] | None
IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label")
END = b"\xff\xff\xff\xff\0\0\0\0"  # of an Arrow stream
# What stands before the first dot names the sample; __x__ is no sample, nor is a hidden file.
MEMBER = re.compile(r"((?:.*/)?(?!__)[^./]+)\.([^/]+)")


class Shard(NamedTuple):
    """What one file has.

    Attributes:
        images: [n], the bytes of an image file each; None: the file has only its path.
        labels: [n] int64; other labels than whole numbers as texts, objects.
        names: class names, whose places the labels are; None: the file does not say them.
        keys: [n], what messages call the samples; empty: by their rows.
    """

    images: Sequence[bytes | None]
    labels: Array
    names: Names = None
    keys: Sequence[str] = ()


Read = Callable[[Path], Shard]


def label_array(labels: Sequence[Any]) -> Array:
    """[n] int64 of whole numbers; of other labels their texts, as objects."""
    values = [by_value(label) for label in labels]
    integers = all(isinstance(value, int) for value in values)
    return np.array(values, np.int64) if integers else np.array([*map(str, values)], object)


def table_reader(image_column: str | None, label_column: str | None) -> Read:
    """A function that reads the shards of Parquet or Arrow files.

    Args:
        image_column, label_column: None: the first that is there of those that are usual.
    """
    images = IMAGE_COLUMNS if image_column is None else (image_column,)
    labels = LABEL_COLUMNS if label_column is None else (label_column,)

    def read(file: Path) -> Shard:
        def choose(names: Sequence[str]) -> list[str]:
            return [
                _column(file, names, images, "data.image_column"),
                _column(file, names, labels, "data.label_column"),
            ]

        arrow = file.suffix == ".arrow"
        try:
            table = _arrow_columns(file, choose) if arrow else _parquet_columns(file, choose)
        except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: a name that is no UTF-8
            kind = "Arrow" if arrow else "Parquet"
            raise DataError(f"{file}: not readable as {kind} ({shortened(str(error), 300)})") from None
        label = table.column_names[1]
        names = _class_names(file, table.schema, label)
        classes = class_labels(file, plain_table(table.select([label])), label)
        codes = label_array(classes.distinct)[classes.places]
        return Shard(_encoded(file, table.column(0)), codes, names)

    return read


def _parquet_columns(file: Path, choose: Callable[[Sequence[str]], list[str]]) -> pa.Table:
    with pq.ParquetFile(file) as stored:
        columns = choose(stored.schema_arrow.names)
        return stored.read(columns=columns).select(columns)  # `read` keeps the file's order


def _arrow_columns(file: Path, choose: Callable[[Sequence[str]], list[str]]) -> pa.Table:
    with pa.memory_map(str(file)) as mapped:
        # Arrow takes a file that ends between two batches for whole.
        mapped.seek(max(0, mapped.size() - len(END)))
        if mapped.read() != END:
            raise ValueError("it ends before the end of the stream: the file is cut off")
        mapped.seek(0)
        stream = pa.ipc.open_stream(mapped)
        return stream.read_all().select(choose(stream.schema.names))


def _column(file: Path, columns: Sequence[str], expected: Sequence[str], option: str) -> str:
    for name in expected:
        if name in columns:
            return name
    raise DataError(
        f"{file}: the columns are {', '.join(columns)}; expected {' or '.join(expected)} "
        f"(the sources parquet and arrow take any other by {option}).{did_you_mean(expected[0], columns)}"
    )


def _class_names(file: Path, schema: pa.Schema, column: str) -> Names:
    """From the metadata that `datasets` writes beside the schema."""
    where = f"{file}: its metadata `huggingface` is damaged"
    raw = (schema.metadata or {}).get(b"huggingface")
    if raw is None:
        return None
    try:
        names = json.loads(raw)["info"]["features"][column].get("names")
    except (KeyError, TypeError):  # another form, without names
        return None
    except (ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"{where} ({shortened(str(error))})") from None
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise DataError(f"{where}: names of classes are no list of texts")
    return tuple(names) if names else None


def _encoded(file: Path, column: pa.ChunkedArray) -> list[bytes | None]:
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
    return list(encoded.to_pylist())


def tar_reader(image: str | None, label: str | None) -> Read:
    """A function that reads WebDataset shards.

    Args:
        image: ending of the images; None: the only one of an image.
        label: ending of the labels, or a key of the JSON, as `json.kind`; None: `cls`, else a usual key.
    """

    def read(file: Path) -> Shard:
        samples = _samples(file)
        pictures, labels = list[bytes](), list[Any]()
        for key, sample in samples.items():
            usual = [name for name in sample if f".{name.rpartition('.')[2]}" in SUFFIXES]
            pictures.append(_part(f"{file}, {key}", sample, [image] if image else usual, "image"))
            usual = ["cls", *(f"json.{column}" for column in LABEL_COLUMNS)]
            present = [name for name in usual if name in sample][:1]
            value = _part(f"{file}, {key}", sample, [label] if label else present or usual, "label")
            labels.append(value.decode("utf8", "replace").strip() if isinstance(value, bytes) else value)
        return Shard(pictures, label_array(labels), None, [*samples])

    return read


def _samples(file: Path) -> dict[str, dict[str, Any]]:
    """Sample -> ending -> content, and json.KEY -> value, in the order of the shard."""
    samples: dict[str, dict[str, Any]] = {}
    try:
        with tarfile.open(file) as shard:
            for member in shard:
                parts, content = MEMBER.fullmatch(member.name), shard.extractfile(member)
                if parts is None or content is None:  # a folder, for example
                    continue
                sample, ending = samples.setdefault(parts[1], {}), parts[2].lower()
                if ending in sample:
                    raise DataError(f"{file}: {member.name} is there twice; expected it once")
                sample[ending] = content.read()
                if ending == "json":
                    sample |= {
                        f"json.{key}": value for key, value in dict(json.loads(sample[ending])).items()
                    }
            # Python takes a damaged header, or a file that is cut off between two, for the end.
            shard.fileobj.seek(shard.offset)
            if shard.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise EOFError(f"damaged or cut off after {len(samples)} samples")
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file}: not readable as tar ({shortened(str(error), 300)})") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{file}: {member.name} has no mapping in JSON ({shortened(str(error))})") from None
    return samples


def _part(where: str, sample: dict[str, Any], endings: Sequence[str], what: str) -> Any:
    """What a sample has under the only one of these endings."""
    value = sample.get(endings[0]) if len(endings) == 1 else None
    if not isinstance(value, bytes | str | int | float) or value in ("", b""):
        wanted = " or ".join(endings) or "png or jpg"
        raise DataError(
            f"{where}: the sample has {in_words(sample)}; expected one {what}, as {wanted} (data.{what}_"
            "column names its ending, or a key of its JSON, as json.kind)"
        )
    return value
