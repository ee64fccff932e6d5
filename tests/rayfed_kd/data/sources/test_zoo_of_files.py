"""A zoo of folders of images, arrays and their like, as people have them: read as what they are, or refused.

A bug report adds a row.
"""

import numpy as np
import pytest
from image_files import images
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
STATION = ("cat", "train_station")
# Name -> files, what is read, options if there are some. A name that ends with `/` is an empty folder.
FOLDERS = {
    "classes": (["cat/1.png", "dog/1.png", "dog/sub/2.JPEG"], read([0, 1, 1])),
    "train and test": (
        ["train/cat/1.png", "train/dog/1.png", "test/dog/1.png", "test/cat/1.png"],
        read(BOTH, BOTH),
    ),
    "Training and Testing": (
        ["Training/cat/1.png", "Training/dog/1.png", "Testing/cat/1.png", "Testing/dog/1.png"],
        read(BOTH, BOTH, notes=["folders for training: Training, for the test: Testing"]),
    ),
    "TRAIN and val": (
        ["TRAIN/cat/1.png", "TRAIN/dog/1.png", "val/cat/1.png"],
        read(BOTH, notes=["training: TRAIN, for the test: none, not used: val; data.train and data.test"]),
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
    "train and car": (["train/1.png", "car/1.png"], read(BOTH, names=("car", "train")), {"train": "."}),
    "test without train": (["test/cat/1.png", "val/cat/1.png"], "folder test is named as a part.*data.train"),
    "a class beside test": (["cat/1.png", "dog/1.png", "test/1.png"], "folder test is named as a part"),
    "two that train": (["train/a/1.png", "Training/a/1.png"], "Training and train may be.*data.train"),
    "parts in a class": (["pets/train/cat/1.png", "pets/test/cat/1.png"], "named as a part .* within pets"),
    "a class called train": (["train/1.png", "car/1.png"], "If train is a class itself, data.train=. takes"),
    "classes one level down": (["pets/cat/1.png", "pets/dog/1.png"], "data.folder=.*/pets has .* cat, dog"),
    "one class": (["cat/1.png"], read([0], names=("cat",), notes=["samples are of one class, cat"])),
    "a test without classes": (
        ["train/cat/1.png", "train/dog/1.png", "test/1.png"],
        read(BOTH, notes=["training: train, for the test: none, not used: test;"]),
    ),
    "training_set and test_set": (
        ["training_set/cat/1.png", "training_set/dog/1.png", "test_set/cat/1.png", "test_set/dog/1.png"],
        read(BOTH, BOTH, notes=["training: training_set, for the test: test_set;"]),
    ),
    "a class called train station": (["train_station/1.png", "cat/1.png"], read(BOTH, names=STATION)),
    "no such part": (["cat/1.png"], "data.test = 'x': there is no folder", {"test": "x"}),
    "a test class that training lacks": (
        ["train/Cat/1.png", "test/cat/1.png"],
        "the class cat has no folder in .*Did you mean Cat",
    ),
    "a test class without images": (
        ["train/cat/1.png", "train/dog/1.png", "test/cat/1.png", "test/dog/"],
        read(BOTH, [0], notes=["official test set has no sample of 1 of 2 classes: dog"]),
    ),
    "hidden files": (
        [
            *("cat/1.png", "cat/._1.png", "cat/.ipynb_checkpoints/1.png"),
            *("dog/1.png", "dog/Thumbs.db", "__MACOSX/x/1.png"),
        ],
        read(BOTH, notes=["left out: 3 hidden"]),
    ),
    "other files": (
        ["cat/1.png", "cat/2.gif", "cat/3.heic", "cat/readme", "dog/1.png", "list.csv"],
        read(BOTH, notes=["left out: 1 .gif, 1 .heic, 1 in no class's folder, 1 without suffix"]),
    ),
    "class of others": (["cat/1.png", "dog/1.heic"], "/dog has no images .*, only 1 .heic; every folder"),
    "an empty class": (["cat/1.png", "dog/"], "/dog has no images .*; every folder is a class"),
    "no folders": (["1.png"], "has no folders; expected one for each class"),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_of_images_is_read_or_asked_about_in_one_line(kind, tmp_path, read_or_refused):
    files, written, *options = FOLDERS[kind]
    for name in files:
        if name.endswith("/"):
            (tmp_path / name).mkdir(parents=True)
        elif name.lower().endswith((".png", ".jpeg")):
            picture(tmp_path / name)
        else:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
    read_or_refused("image_folder", written, **dict(*options))


def npz(labels=HALVES, samples=GREY, **more):
    return {"x_train": samples, "y_train": np.asarray(labels), **more}


NUMBERED = "labels are {}; models number them 0 to {}"
FIRST = GREY[:, None]
ARRAYS = {
    "grey": (npz(), {"images": FIRST, "names": ("0", "1")}),
    "channels last": (npz(samples=COLOUR), {"images": COLOUR.transpose(0, 3, 1, 2)}),
    "channels first": (npz(samples=COLOUR.transpose(0, 3, 1, 2)), {"images": COLOUR.transpose(0, 3, 1, 2)}),
    "float64": (npz(samples=GREY / 255), {"images": FIRST / 255}),
    "float16": (npz(samples=np.full((4, 3), 0.5, np.float16)), {"images": np.full((4, 3), 0.5)}),
    "an array that nobody asks for": (
        npz(more=np.array([None])),
        {"labels": HALVES, "notes": ["a.npz: arrays that are not used: more"]},
    ),
    "from 1": (npz([1, 2, 3, 1]), {"labels": [0, 1, 2, 0], "notes": [NUMBERED.format("1, 2 and 3", 2)]}),
    "labels with a gap": (npz([0, 7, 0, 7]), {"labels": HALVES, "notes": [NUMBERED.format("0 and 7", 1)]}),
    "negative labels": (npz([-1, 1, -1, 1]), {"labels": HALVES, "names": ("-1", "1"), "notes": ["-1 and 1"]}),
    "labels as floats": (npz([0.0, 1, 0, 1]), {"labels": HALVES, "names": ("0", "1")}),
    "labels as numerals": (npz(["0", "10", "9", "0"]), {"labels": [0, 2, 1, 0], "notes": ["0, 9 and 10"]}),
    "labels as words": (npz(["b", "a", "b", "a"]), {"labels": [1, 0, 1, 0], "names": ("a", "b")}),
    "labels as booleans": (npz([False, True] * 2), {"labels": HALVES, "names": ("False", "True")}),
    "labels as a column": (npz([[0], [1], [0], [1]]), {"labels": HALVES}),
    "labels as one column a class": (npz(np.eye(4)), "y_train is float64 of .*labels.argmax"),
    "labels with fractions": (npz([0.5, 1, 2, 3]), "array 'y_train': 0.5 is no class"),
    "labels that are NaN": (npz([np.nan, 1, 2, 3]), "array 'y_train': nan is no class"),
    "too few labels": (npz([0, 1]), "y_train is int64 of .2,.; expected a class, .*for each of 4"),
    "a test label that training lacks": (
        npz(x_test=GREY, y_test=np.arange(4)),
        "array 'y_test': the class 2 is not in .*'y_train'",
    ),
    "both channels possible": (npz(samples=images(4, 3, 5, 3)), "data.channels: .*expected first or last"),
    "four channels": (npz(samples=images(4, 6, 5, 4)), "data.channels: .*expected first or last"),
    "no width": (npz(samples=images(4, 6, 0)), "samples of no numbers"),
    "uint16": (npz(samples=GREY.astype(np.uint16)), r"x_train is uint16; .*x / 65535"),
    "objects": (npz(samples=np.array([None] * 4)), "not readable as .npz .Object arrays cannot be loaded"),
    "above float32": (npz(samples=np.full((4, 3), 1e300)), "above what float32 holds"),
    "one number": (npz(samples=np.array(3)), "for each of 0 samples"),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_an_npz_file_is_what_it_means_or_one_line(kind, tmp_path, read_or_refused):
    arrays, written, *options = ARRAYS[kind]
    np.savez(tmp_path / "a.npz", **arrays)
    read_or_refused("npz", written, file="a.npz", **dict(*options))
