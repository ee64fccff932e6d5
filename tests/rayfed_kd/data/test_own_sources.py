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
        r"own failed: FileNotFoundError: .*wrong_\w+.py, line 10\); it looked in .*, which data.folder",
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
    "not a number": (
        "return Source([], {}, lambda: RawDataset(Split(PIXELS + np.float32('nan'), LABELS), None, ('a',)))",
        "train: sample 0 has NaN, infinite values or ones above what float32 holds",
    ),
}


def test_data_are_decoded_again_where_a_module_that_the_source_imports_is_edited(tmp_path, own_module):
    body = "return Source([], {}, lambda: RawDataset(Split(PIXELS + own_level.LEVEL, LABELS), None, ('a',)))"
    for level in (1, 2):
        own_module("own_level", f"import numpy as np\nLEVEL = np.uint8({level})\n")
        own_module("levelled", f"import own_level\n{HEAD}    {body}\n")
        assert load_dataset("levelled:own", tmp_path).train.images.max() == level


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_source_is_one_message(case, tmp_path, own_module):
    body, message = BAD[case]
    module = f"wrong_{case.replace(' ', '_')}"
    own_module(module, f"{HEAD}    {body}\n")
    with pytest.raises((DataError, RecipeError), match=message):
        load_dataset(f"{module}:own", tmp_path)
