"""Parquet in the Hugging Face layout: any columns, any folder; what is broken is named by file and row."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_files import images, png, write_encoded, write_parquet

from rayfed_kd.data.loading import load_dataset
from rayfed_kd.errors import DataError

pytestmark = pytest.mark.usefixtures("own_cache")


def test_any_parquet_takes_its_names_from_the_schema(tmp_path):
    write_parquet(
        tmp_path / "a.parquet", images(3, 8, 8, 3), [0, 1, 1], "picture", "kind", names=["cat", "dog"]
    )
    options = {"train": "a.parquet", "test": None, "image_column": "picture", "label_column": "kind"}
    data = load_dataset("parquet", tmp_path, options=options)
    assert data.class_names == ("cat", "dog")
    assert data.test is None
    assert data.mean == pytest.approx(tuple(data.train.images.mean(axis=(0, 2, 3)) / 255))


def test_unknown_column_names_the_nearest(tmp_path):
    write_parquet(tmp_path / "train-0.parquet", images(2, 8, 8), [0, 1], "picture")
    with pytest.raises(
        DataError, match=r"the columns are picture, label; expected pictur .* Did you mean picture\?"
    ):
        load_dataset("parquet", tmp_path, options={"image_column": "pictur"})


def test_images_of_two_sizes_are_refused(tmp_path):
    write_parquet(tmp_path / "train-0.parquet", [images(1, 8, 8)[0], images(1, 9, 9)[0]], [0, 1])
    with pytest.raises(
        DataError, match=r"row 1: an image of \(1, 9, 9\); expected \(1, 8, 8\).*data.size=32"
    ):
        load_dataset("parquet", tmp_path)


@pytest.mark.parametrize("pattern", ["some/a.parquet", "some/*.parquet", "*/?.parquet"])
@pytest.mark.parametrize("absolute", [False, True])
def test_paths_and_globs_may_be_absolute(pattern, absolute, tmp_path):
    write_parquet(tmp_path / "some" / "a.parquet", images(3, 8, 8), [0, 1, 1])
    write_parquet(tmp_path / "held" / "some" / "a.parquet", images(2, 8, 8), [0, 1])
    train, test = (str(tmp_path / one) if absolute else one for one in (pattern, f"held/{pattern}"))
    data = load_dataset("parquet", tmp_path, options={"train": train, "test": test})
    assert (len(data.train), len(data.test)) == (3, 2)


@pytest.mark.parametrize("option", ["train", "test"])
def test_pattern_without_files_is_told(option, tmp_path):
    write_parquet(tmp_path / "train-0.parquet", images(2, 8, 8), [0, 1])
    with pytest.raises(DataError, match=rf"data.{option} = 'tset-\*' names no file in {tmp_path}"):
        load_dataset("parquet", tmp_path, options={option: "tset-*"})


def test_order_of_many_images_is_kept(tmp_path):
    """More than two stretches of 1,000, so that threads share them."""
    pixels = np.arange(2500, dtype=np.uint16).view(np.uint8).reshape(2500, 1, 2)
    write_parquet(tmp_path / "train-0.parquet", pixels, [0] * 2500)
    assert np.array_equal(load_dataset("parquet", tmp_path).train.images[:, 0], pixels)


def test_missing_label_is_refused(tmp_path):
    write_encoded(tmp_path / "train-0.parquet", [png(images(1, 8, 8)[0])] * 2, pa.array([1, None]))
    with pytest.raises(
        DataError, match=r"train-0.parquet, row 2: no value in the column 'label'; 1 have none"
    ):
        load_dataset("parquet", tmp_path)


def test_labels_that_are_dates_are_refused(tmp_path):
    labels = pa.array([0], pa.date32())
    write_encoded(tmp_path / "train-0.parquet", [png(images(1, 8, 8)[0])], labels)
    with pytest.raises(DataError, match="column 'label' holds times, expected texts or whole numbers"):
        load_dataset("parquet", tmp_path)


@pytest.mark.parametrize(
    ("encoded", "told"),
    [
        (b"no image", "no image format"),
        (png(images(1, 8, 8)[0])[:-30], "no readable image"),
        (None, "no image bytes"),
        (png(np.zeros((8, 8), dtype=np.uint16)), "expected eight bits"),
        (b"P6 8 8 65535\n" + bytes(384), "expected eight bits"),
        (png(*np.eye(16, dtype=np.uint8).reshape(4, 8, 8)), "4 frames or pages; expected one"),
    ],
    ids=["not an image", "cut off", "only a path", "sixteen bits", "of colours", "frames"],
)
def test_unreadable_image_is_named_by_its_row(encoded, told, tmp_path):
    good = png(images(1, 8, 8)[0])
    write_encoded(tmp_path / "train-0.parquet", [good, encoded], pa.array([0, 1]))
    with pytest.raises(DataError, match=f"train-0.parquet, row 1: .*{told}"):
        load_dataset("parquet", tmp_path)


def test_image_column_of_another_type_is_told(tmp_path):
    pq.write_table(pa.table({"image": ["x"], "label": [0]}), tmp_path / "train-0.parquet")
    with pytest.raises(DataError, match=r"the image column is string, expected struct\(bytes, path\)"):
        load_dataset("parquet", tmp_path)


def test_file_that_is_no_parquet_is_named(tmp_path):
    (tmp_path / "train-0.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match=r"train-0.parquet: not readable as Parquet"):
        load_dataset("parquet", tmp_path)


def test_files_without_rows_are_refused(tmp_path):
    write_encoded(tmp_path / "train-0.parquet", [png(images(1, 8, 8)[0])], pa.array([0]))
    pq.write_table(pq.read_table(tmp_path / "train-0.parquet").slice(0, 0), tmp_path / "train-0.parquet")
    with pytest.raises(DataError, match=r"train-0.parquet: no rows"):
        load_dataset("parquet", tmp_path)
