"""Small image files: pixels, PNGs, Parquet in the Hugging Face layout, MNIST's IDX."""

import io
import json
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def images(count, *shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def png(pixels, *more):
    buffer, frames = io.BytesIO(), [Image.fromarray(frame) for frame in more]
    Image.fromarray(pixels).save(buffer, format="png", save_all=bool(frames), append_images=frames)
    return buffer.getvalue()


def write_encoded(path, encoded, labels, image="image", label="label", names=None):
    """A Parquet file of encoded images; `names` of the classes stand in its schema."""
    column = pa.array([{"bytes": one, "path": None} for one in encoded])
    table = pa.table({image: column, label: labels})
    if names:
        info = {"info": {"features": {label: {"names": list(names), "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def write_parquet(path, pixels, labels, *columns, names=None):
    """The same of pixels; `columns`: the image's and the label's."""
    write_encoded(path, [png(p) for p in pixels], pa.array(labels, pa.int64()), *columns, names=names)


def write_idx(folder, name, pixels, labels):
    """The two files of a part of MNIST or its like."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, array in (("images-idx3", pixels), ("labels-idx1", np.array(labels, dtype=np.uint8))):
        header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        (folder / f"{name}-{kind}-ubyte").write_bytes(header + array.tobytes())
