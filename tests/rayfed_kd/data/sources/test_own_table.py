"""Tables of a user's own: standardised numbers, categories as 0 and 1 or as codes."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayfed_kd.data.loading import load_dataset
from rayfed_kd.errors import DataError, RecipeError

pytestmark = pytest.mark.usefixtures("own_cache")

HEAD = "age,job,income,site,class"
TRAIN = ["20,nurse,1.5,a,no", "40,clerk,0.5,b,yes", "60,nurse,2.5,a,yes"]
TEST = ["40,pilot,1.5,a,no"]
DEVIATION = 40 / np.sqrt(6)  # of 20, 40, 60: the root of (400 + 0 + 400) / 3


def write(folder, train=TRAIN, test=TEST):
    (folder / "train.csv").write_text("\n".join([HEAD, *train]))
    (folder / "test.csv").write_text("\n".join([HEAD, *test]))
    return {"label_column": "class", "leave_out": ["site"]}


def test_numbers_are_standardised_by_the_training_rows_and_categories_are_0_and_1(tmp_path):
    data = load_dataset("tabular", tmp_path, options={**write(tmp_path), "test": "test.csv"})
    age = np.array([20, 40, 60]) - 40
    income = np.array([1.5, 0.5, 2.5]) - 1.5
    expected = np.stack([age / DEVIATION, income / np.sqrt(2 / 3), [0, 1, 0], [1, 0, 1]], axis=1)
    np.testing.assert_allclose(data.train.images, expected, rtol=1e-6)
    # A category that no training row has is all zeros.
    np.testing.assert_allclose(data.test.images, [[0, 0, 0, 0]], atol=1e-7)
    assert (data.class_names, data.train.labels.tolist()) == (("no", "yes"), [0, 1, 1])
    assert data.train.images.dtype == np.float32


def test_codes_begin_at_1_and_0_is_unseen(tmp_path):
    options = {**write(tmp_path), "test": "test.csv", "categories": "codes"}
    data = load_dataset("tabular", tmp_path, options=options)
    assert data.train.images[:, 2].tolist() == [2, 1, 2]
    assert data.test.images[:, 2].tolist() == [0]
    assert (data.shape, data.shape.numbers, data.shape.categories) == ((3,), 2, (3,))


def test_partitions_may_go_by_categories_and_by_columns_that_are_left_out(tmp_path):
    data = load_dataset("tabular", tmp_path, options=write(tmp_path))
    assert {name: values.tolist() for name, values in data.columns.items()} == {
        "job": [1, 0, 1],
        "site": [0, 1, 0],
    }
    pq.write_table(pa.table({"job": ["b", None, "a"], "class": ["x", "y", "x"]}), tmp_path / "train.parquet")
    data = load_dataset("tabular", tmp_path, options={"label_column": "class", "train": "train.parquet"})
    assert data.columns["job"].tolist() == [2, 0, 1]  # a missing text is a value, the first


def test_listed_columns_are_those_that_are_used(tmp_path):
    options = {**write(tmp_path), "leave_out": [], "numeric": ["income"], "categorical": ["age"]}
    data = load_dataset("tabular", tmp_path, options=options)
    assert data.train.images[:, 1:].tolist() == np.eye(3).tolist()
    assert data.notes[0] == "columns that are left out, as others are listed: 'job'; 'site'"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"numeric": ["job"]}, DataError, "column 'job' holds texts, expected numbers; data.numeric"),
        ({"categorical": ["jbo"]}, DataError, "data.categorical = 'jbo'.*Did you mean job"),
        ({"leave_out": ["job"], "categorical": ["job"]}, RecipeError, "job is listed as a feature as well"),
        ({"leave_out": ["sites"]}, DataError, "data.leave_out = 'sites'.*Did you mean site"),
    ],
)
def test_what_is_wrong_is_one_message(tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        load_dataset("tabular", tmp_path, options={**write(tmp_path), **changes})
