"""A zoo of folders of images, arrays and their like, as people have them: read as what they are, or refused.

A bug report adds a row.
"""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_files import images, png, write_encoded, write_parquet
from PIL import Image

GREY = images(4, 6, 5)
COLOUR = images(4, 6, 5, 3)
HALVES = [0, 1, 0, 1]


def picture(path, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(images(1, 4, 4, 3, seed=seed)[0]).save(path)


def read(train, test=(), names=("cat", "dog"), notes=()):
    """What is read: labels of training and test samples, names of classes, notes."""
    tested = {"test_labels": list(test)} if len(test) else {}
    return {"labels": list(train), "names": names, "notes": list(notes), **tested}


BOTH = [0, 1]
# Name -> files, what is read, options. A name that ends with `/` is an empty folder.
FOLDERS = {
    "classes": (["cat/1.png", "dog/1.png", "dog/sub/2.JPEG"], read([0, 1, 1]), {}),
    "train and test": (
        ["train/cat/1.png", "train/dog/1.png", "test/dog/1.png", "test/cat/1.png"],
        read(BOTH, BOTH),
        {},
    ),
    "Training and Testing": (
        ["Training/cat/1.png", "Training/dog/1.png", "Testing/cat/1.png", "Testing/dog/1.png"],
        read(BOTH, BOTH, notes=["folders for training: Training, for the test: Testing"]),
        {},
    ),
    "TRAIN and val": (
        ["TRAIN/cat/1.png", "TRAIN/dog/1.png", "val/cat/1.png"],
        read(BOTH, notes=["training: TRAIN, for the test: none, not used: val; data.train and data.test"]),
        {},
    ),
    "train and valid, which is named": (
        ["train/cat/1.png", "train/dog/1.png", "valid/cat/1.png", "valid/dog/1.png"],
        read(BOTH, BOTH, notes=["training: train, for the test: valid;"]),
        {"test": "valid"},
    ),
    "parts with names of their own": (
        ["a/cat/1.png", "a/dog/1.png", "b/cat/1.png", "b/dog/1.png", "c/x/1.png"],
        read(BOTH, BOTH, notes=["training: a, for the test: b, not used: c;"]),
        {"train": "a", "test": "b"},
    ),
    "classes called train and car": (
        ["train/1.png", "car/1.png"],
        read(BOTH, names=("car", "train")),
        {"train": "."},
    ),
    "test without train": (
        ["test/cat/1.png", "val/cat/1.png"],
        "folder test is named as a part.*data.train",
        {},
    ),
    "a class beside test": (["cat/1.png", "dog/1.png", "test/1.png"], "folder test is named as a part", {}),
    "two folders that train": (
        ["train/a/1.png", "Training/a/1.png"],
        "Training and train may be.*data.train",
        {},
    ),
    "parts within a class": (
        ["pets/train/cat/1.png", "pets/test/cat/1.png"],
        "named as a part .* within pets",
        {},
    ),
    "no such part": (["cat/1.png"], "data.test = 'x': there is no folder", {"test": "x"}),
    "a test class that training lacks": (
        ["train/Cat/1.png", "test/cat/1.png"],
        "the class cat has no folder in .*Did you mean Cat",
        {},
    ),
    "a test class without images": (
        ["train/cat/1.png", "train/dog/1.png", "test/cat/1.png", "test/dog/"],
        read(BOTH, [0], notes=["official test set has no sample of 1 of 2 classes: dog"]),
        {},
    ),
    "hidden files": (
        [
            "cat/1.png",
            "cat/._1.png",
            "cat/.ipynb_checkpoints/1.png",
            "dog/1.png",
            "dog/Thumbs.db",
            "__MACOSX/x/1.png",
        ],
        read(BOTH, notes=["left out: 3 hidden"]),
        {},
    ),
    "other files": (
        ["cat/1.png", "cat/2.gif", "cat/3.heic", "cat/readme", "dog/1.png", "list.csv"],
        read(BOTH, notes=["left out: 1 .gif, 1 .heic, 1 in no class's folder, 1 without suffix"]),
        {},
    ),
    "a class of other files": (
        ["cat/1.png", "dog/1.heic"],
        "/dog has no images .*, only 1 .heic; every folder",
        {},
    ),
    "an empty class": (["cat/1.png", "dog/"], "/dog has no images .*; every folder is a class", {}),
    "no folders": (["1.png"], "has no folders; expected one for each class", {}),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_of_images_is_read_or_asked_about_in_one_line(kind, tmp_path, read_or_refused):
    files, written, options = FOLDERS[kind]
    for name in files:
        if name.endswith("/"):
            (tmp_path / name).mkdir(parents=True)
        elif name.lower().endswith((".png", ".jpeg")):
            picture(tmp_path / name)
        else:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
    read_or_refused("image_folder", written, **options)


def npz(labels=HALVES, samples=GREY, **more):
    return {"x_train": samples, "y_train": np.asarray(labels), **more}


NUMBERED = "labels are {}; models number them 0 to {}"
FIRST = GREY[:, None]
ARRAYS = {
    "grey": (npz(), {"images": FIRST, "names": ("0", "1")}, {}),
    "channels last": (npz(samples=COLOUR), {"images": COLOUR.transpose(0, 3, 1, 2)}, {}),
    "channels first": (
        npz(samples=COLOUR.transpose(0, 3, 1, 2)),
        {"images": COLOUR.transpose(0, 3, 1, 2)},
        {},
    ),
    "float64": (npz(samples=GREY / 255), {"images": FIRST / 255}, {}),
    "float16": (npz(samples=np.full((4, 3), 0.5, np.float16)), {"images": np.full((4, 3), 0.5)}, {}),
    "an array that nobody asks for": (npz(more=np.array([None])), {"labels": HALVES}, {}),
    "labels from 1": (
        npz([1, 2, 3, 1]),
        {"labels": [0, 1, 2, 0], "notes": [NUMBERED.format("1, 2 and 3", 2)]},
        {},
    ),
    "labels with a gap": (
        npz([0, 7, 0, 7]),
        {"labels": HALVES, "notes": [NUMBERED.format("0 and 7", 1)]},
        {},
    ),
    "negative labels": (
        npz([-1, 1, -1, 1]),
        {"labels": HALVES, "names": ("-1", "1"), "notes": ["-1 and 1"]},
        {},
    ),
    "labels as floats": (npz([0.0, 1, 0, 1]), {"labels": HALVES, "names": ("0", "1")}, {}),
    "labels as texts of numbers": (
        npz(["0", "10", "9", "0"]),
        {"labels": [0, 2, 1, 0], "notes": ["0, 9 and 10"]},
        {},
    ),
    "labels as words": (npz(["b", "a", "b", "a"]), {"labels": [1, 0, 1, 0], "names": ("a", "b")}, {}),
    "labels as booleans": (npz([False, True] * 2), {"labels": HALVES, "names": ("False", "True")}, {}),
    "labels as a column": (npz([[0], [1], [0], [1]]), {"labels": HALVES}, {}),
    "labels as one column a class": (npz(np.eye(4)), "y_train is float64 of .*labels.argmax", {}),
    "labels with fractions": (npz([0.5, 1, 2, 3]), "array 'y_train': 0.5 is no class", {}),
    "labels that are NaN": (npz([np.nan, 1, 2, 3]), "array 'y_train': nan is no class", {}),
    "too few labels": (npz([0, 1]), "y_train is int64 of .2,.; expected a class, .*for each of 4", {}),
    "a test label that training lacks": (
        npz(x_test=GREY, y_test=np.arange(4)),
        "array 'y_test': the class 2 is not in .*'y_train'",
        {},
    ),
    "both channels possible": (
        npz(samples=images(4, 3, 5, 3)),
        "data.channels: .*expected first or last",
        {},
    ),
    "four channels": (npz(samples=images(4, 6, 5, 4)), "data.channels: .*expected first or last", {}),
    "no width": (npz(samples=images(4, 6, 0)), "samples of no numbers", {}),
    "uint16": (npz(samples=GREY.astype(np.uint16)), r"x_train is uint16; .*x / 65535", {}),
    "objects": (npz(samples=np.array([None] * 4)), "x_train holds Python objects", {}),
    "above float32": (npz(samples=np.full((4, 3), 1e300)), "above what float32 holds", {}),
    "one number": (npz(samples=np.array(3)), "for each of 0 samples", {}),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_an_npz_file_is_what_it_means_or_one_line(kind, tmp_path, read_or_refused):
    arrays, written, options = ARRAYS[kind]
    np.savez(tmp_path / "a.npz", **arrays)
    read_or_refused("npz", written, file="a.npz", **options)


def encoded(count=2):
    return [png(one) for one in GREY[:count]]


def shards(folder):
    for shard in (0, 1):
        write_parquet(folder / "data" / f"train-0000{shard}-of-00002.parquet", GREY[:2], [shard, shard])
    write_parquet(folder / "data" / "test-00000-of-00001.parquet", GREY[:2], [0, 1])
    return {"labels": [0, 0, 1, 1], "test_labels": [0, 1]}


def validation(folder):
    write_parquet(folder / "data" / "train-0.parquet", GREY[:2], [0, 1])
    write_parquet(folder / "data" / "validation-0.parquet", GREY[:2], [0, 1])
    return {
        "labels": [0, 1],
        "notes": [r"validation-\*.parquet is not used; data.test=validation-\*.parquet"],
    }


def one_level_down(folder):
    write_parquet(folder / "plain_text" / "train-0.parquet", GREY[:2], [0, 1])
    return r"data.train = 'train-\*.parquet' names no file in .*There are plain_text/train-0.parquet"


def from_1(folder):
    write_parquet(folder / "train-0.parquet", GREY, [1, 2, 3, 1])
    return {"labels": [0, 1, 2, 0], "names": ("1", "2", "3"), "notes": ["labels are 1, 2 and 3"]}


def large_words(folder):
    write_encoded(folder / "train-0.parquet", encoded(), pa.array(["b", "a"], pa.large_string()))
    return {"labels": [1, 0], "names": ("a", "b")}


def categories(folder):
    write_encoded(folder / "train-0.parquet", encoded(), pa.array(["b", "a"]).dictionary_encode())
    return {"labels": [1, 0], "names": ("a", "b")}


def floats(folder):
    write_encoded(folder / "train-0.parquet", encoded(), pa.array([1.0, 0.0]))
    return {"labels": [1, 0], "names": ("0", "1")}


def fractions(folder):
    write_encoded(folder / "train-0.parquet", encoded(), pa.array([0.5, 1.5]))
    return "training files: 0.5 is no class"


def names_beyond(folder):
    write_parquet(folder / "train-0.parquet", GREY[:2], [0, 1], names=["a", "b", "c"])
    return {"names": ("a", "b", "c"), "notes": ["training set has no sample of 1 of 3 classes: c"]}


def no_label(folder):
    write_parquet(folder / "train-0.parquet", GREY[:2], [0, -1], names=["a", "b"])
    return "labels from -1 to 0, expected 0 to 1"


def plain_bytes(folder):
    pq.write_table(
        pa.table({"image": pa.array(encoded(), pa.large_binary()), "label": [0, 1]}),
        folder / "train-0.parquet",
    )
    return {"images": GREY[:2, None]}


@pytest.mark.parametrize(
    "write",
    [
        shards,
        validation,
        one_level_down,
        from_1,
        large_words,
        categories,
        floats,
        fractions,
        names_beyond,
        no_label,
        plain_bytes,
    ],
)
def test_parquet_of_images_is_what_it_means_or_one_line(write, tmp_path, read_or_refused):
    read_or_refused("parquet", write(tmp_path))


WRITTEN = {"x": [[0.5] * 784] * 2, "y": [1, 2]}
LEAF = {
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


PFLLIB = {
    "pixels in [-1, 1]": (GREY[:, None] / np.float32(127.5) - np.float32(1), HALVES, {"images": FIRST}),
    "labels from 1": (
        GREY[:, None] / np.float32(255),
        [1, 2, 1, 2],
        {"labels": [1, 2, 1, 2] * 2, "notes": ["no sample of 1 of 3 classes: 0"]},
    ),
    "labels as floats": (
        GREY[:, None] / np.float32(255),
        [0.5] * 4,
        "y is float64 of .4,.; expected a whole",
    ),
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
