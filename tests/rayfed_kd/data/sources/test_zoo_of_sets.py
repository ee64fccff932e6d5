"""A zoo of Hugging Face's, LEAF's and PFLlib's files: read as what they are, or refused in one line.

A bug report adds a row.
"""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_files import images, png, write_encoded, write_parquet

GREY = images(4, 6, 5)
FIRST = GREY[:, None]
HALVES = [0, 1, 0, 1]


def encoded(count=2):
    return [png(one) for one in GREY[:count]]


def shards(folder):
    for shard in (0, 1):
        write_parquet(folder / "data" / f"train-0000{shard}-of-00002.parquet", GREY[:2], [shard, shard])
    write_parquet(folder / "data" / "test-00000-of-00001.parquet", GREY[:2], [0, 1])
    return {"labels": [0, 0, 1, 1], "test_labels": [0, 1]}


def lost_shard(folder):
    shards(folder)
    (folder / "data" / "train-00000-of-00002.parquet").unlink()
    return r"data/train-\*.parquet: their names say that there are 2; found 1"


def validation(folder):
    write_parquet(folder / "data" / "train-0.parquet", GREY[:2], [0, 1])
    write_parquet(folder / "data" / "validation-0.parquet", GREY[:2], [0, 1])
    notes = [r"validation-\*.parquet is not used; 'data.test=\"validation-\*.parquet\"'"]
    return {"labels": [0, 1], "notes": notes}


def one_level_down(folder):
    write_parquet(folder / "plain_text" / "train-0.parquet", GREY[:2], [1, 0])
    return {"labels": [1, 0]}


def two_configurations(folder):
    for name in ("large", "small"):
        write_parquet(folder / name / "train-0.parquet", GREY[:2], [1, 0])
    return r"names no file in .*There are large/train-0.parquet and small/train-0.parquet"


def other_names_in_the_test(folder):
    write_parquet(folder / "train-0.parquet", GREY[:2], [0, 1], names=["a", "b"])
    write_parquet(folder / "test-0.parquet", GREY[:2], [0, 1], names=["b", "a"])
    return "test-0.parquet: the classes are b, a; in the files before they are a, b"


def names_in_one_file_alone(folder):
    write_parquet(folder / "train-0.parquet", GREY[:2], [0, 1])
    write_parquet(folder / "train-1.parquet", GREY[:2], [0, 1], names=["b", "a"])
    return "train-1.parquet: names of its classes are in some of the files alone; expected in all"


def from_1(folder):
    write_parquet(folder / "train-0.parquet", GREY, [1, 2, 3, 1])
    return {"labels": [0, 1, 2, 0], "names": ("1", "2", "3"), "notes": ["labels are 1, 2 and 3"]}


def names_beyond(folder):
    write_parquet(folder / "train-0.parquet", GREY[:2], [0, 1], names=["a", "b", "c"])
    return {"names": ("a", "b", "c"), "notes": ["training set has no sample of 1 of 3 classes: c"]}


def no_label(folder):
    write_parquet(folder / "train-0.parquet", GREY[:2], [0, -1], names=["a", "b"])
    return "labels from -1 to 0, expected 0 to 1"


def plain_bytes(folder):
    table = pa.table({"image": pa.array(encoded(), pa.large_binary()), "label": [0, 1]})
    pq.write_table(table, folder / "train-0.parquet")
    return {"images": GREY[:2, None]}


@pytest.mark.parametrize(
    "write",
    [
        *(shards, lost_shard, validation, one_level_down, two_configurations, other_names_in_the_test),
        *(names_in_one_file_alone, from_1, names_beyond, no_label, plain_bytes),
    ],
)
def test_parquet_of_images_is_what_it_means_or_one_line(write, tmp_path, read_or_refused):
    read_or_refused("parquet", write(tmp_path))


WORDS = {"labels": [1, 0], "names": ("a", "b")}
LABELS = {
    "large words": (pa.array(["b", "a"], pa.large_string()), WORDS),
    "categories": (pa.array(["b", "a"]).dictionary_encode(), WORDS),
    "floats": (pa.array([1.0, 0.0]), {"labels": [1, 0], "names": ("0", "1")}),
    "fractions": (pa.array([0.5, 1.5]), "training files: 0.5 is no class"),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_each_arrow_type_are_what_they_mean_or_one_line(kind, tmp_path, read_or_refused):
    labels, written = LABELS[kind]
    write_encoded(tmp_path / "train-0.parquet", encoded(), labels)
    read_or_refused("parquet", written)


WRITTEN = {"x": [[0.5] * 784] * 2, "y": [1, 2]}
NO_LAYOUT = "a.json: not LEAF's layout"
LEAF = {
    "a label is missing": (WRITTEN | {"y": [1]}, NO_LAYOUT),
    "a pixel is missing": ({"x": [[0.5] * 783], "y": [1]}, NO_LAYOUT),
    "pixels to 255": (WRITTEN | {"x": [[255.0] * 784] * 2}, NO_LAYOUT),
    "no user": (None, NO_LAYOUT),
    "no samples": ({"x": [], "y": []}, "a.json: no samples"),
    "a NaN for a pixel": (WRITTEN | {"x": [[float("nan")] * 784] * 2}, "not LEAF's layout .*pixels from nan"),
    "a label with a fraction": (WRITTEN | {"y": [1.5, 2]}, "labels that are no whole numbers"),
    "a label that is no letter": (WRITTEN | {"y": [1, 62]}, "labels from 1 to 62, expected 0 to 61"),
    "two letters": (WRITTEN, {"labels": [1, 2], "notes": ["no sample of 60 of 62 classes: 0, 3, 4"]}),
}


@pytest.mark.parametrize("kind", LEAF)
def test_leaf_is_what_it_means_or_one_line(kind, tmp_path, read_or_refused):
    samples, written = LEAF[kind]
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.json").write_text(json.dumps({"users": ["u"], "user_data": {"u": samples}}))
    read_or_refused("femnist", written)


UNIT, FROM_1 = FIRST / np.float32(255), [1, 2, 1, 2]
PFLLIB = {
    "pixels in [-1, 1]": (FIRST / np.float32(127.5) - np.float32(1), HALVES, {"images": FIRST}),
    "from 1": (UNIT, FROM_1, {"labels": FROM_1 * 2, "notes": ["no sample of 1 of 3 classes: 0"]}),
    "labels as floats": (UNIT, [0.5] * 4, "y is float64 of .4,.; expected a whole"),
    "NaN": (np.full((4, 1, 2, 2), np.nan, np.float32), HALVES, "x has values that are NaN"),
}


@pytest.mark.parametrize("kind", PFLLIB)
def test_pfllib_is_what_it_means_or_one_line(kind, tmp_path, read_or_refused):
    samples, labels, written = PFLLIB[kind]
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        np.savez(tmp_path / part / "0.npz", data={"x": samples, "y": np.array(labels)})
    if "images" in written:
        written = {"images": np.concatenate([written["images"]] * 2)}
    read_or_refused("pfllib", written)
