"""A source of a user's own that is wrong: one message, with their line or what was expected."""

import pytest

from rayfed_kd.data.loading import load_dataset
from rayfed_kd.errors import DataError, RecipeError

pytestmark = pytest.mark.usefixtures("own_cache")

HEAD = """
import numpy as np
from rayfed_kd import data_source
from rayfed_kd.data.dataset import RawDataset, Source, Split

PIXELS, LABELS = np.zeros((4, 1, 8, 8), np.uint8), np.zeros(4, np.int64)

@data_source
def own(folder):
"""
BAD = {
    "no folder": (
        "return Source(sorted((folder / 'none').iterdir()), {}, None)",
        r"own failed: FileNotFoundError: .*wrong.py, line 10\); it looked in .*, which data.folder",
    ),
    "no file": (
        "return Source([folder / 'none.bin'], {}, None)",
        r"none.bin: cannot be read \(No such file or directory\); data.folder or RAYFED_KD_DATA",
    ),
    "data at once": (
        "return RawDataset(Split(PIXELS, LABELS), None, ('a',))",
        "returned a RawDataset, expected a",
    ),
    "nothing decoded": ("return Source([], {}, lambda: None)", r"decode\(\) returned a NoneType, expected a"),
    "arrays": ("return Source([], {}, lambda: (PIXELS, LABELS))", r"decode\(\) returned a tuple, expected a"),
    "no split": (
        "return Source([], {}, lambda: RawDataset(PIXELS, None, ('a',)))",
        "train is a ndarray, expected a",
    ),
    "lists": (
        "return Source([], {}, lambda: RawDataset(Split([[1]], LABELS), None, ('a',)))",
        "train: images are a list, expected a numpy array",
    ),
    "no names": (
        "return Source([], {}, lambda: RawDataset(Split(PIXELS, LABELS), None, None))",
        "class_names is None, expected a text for each class",
    ),
    "labels": (
        "return Source([], {}, lambda: RawDataset(Split(PIXELS, LABELS + 1), None, ('a',)))",
        "train: labels from 1 to 1, expected 0 to 0",
    ),
    "not a number": (
        "return Source([], {}, lambda: RawDataset(Split(PIXELS + np.float32('nan'), LABELS), None, ('a',)))",
        "train: sample 0 has NaN, infinite values or ones above what float32 holds",
    ),
}


@pytest.mark.parametrize(("body", "message"), BAD.values(), ids=BAD)
def test_a_wrong_source_is_one_message(body, message, tmp_path, own_module):
    own_module("wrong", f"{HEAD}    {body}\n")
    with pytest.raises((DataError, RecipeError), match=message):
        load_dataset("wrong:own", tmp_path)


def test_what_a_source_imports_is_a_part_of_its_name_in_the_cache(own_module):
    made = "Source([], {}, lambda: RawDataset(Split(PIXELS + np.uint8(PIXEL), LABELS), None, ('a',)))"
    for pixel in (1, 22):
        own_module("prepares", f"PIXEL = {pixel}\n")
        own_module("prepared", f"{HEAD}    from prepares import PIXEL\n    return {made}\n")
        assert load_dataset("prepared:own").train.images.max() == pixel
