"""Every format is read from small files made in it; missing data is told."""

import json
import subprocess
import sys

import numpy as np
import pytest
from image_files import images, png, write_idx, write_parquet

from rayfed_kd.data.loading import load_dataset
from rayfed_kd.data.sources.image_sets import known_sets
from rayfed_kd.errors import DataError, RecipeError

NAMED = ["mnist", "fashion_mnist", "emnist_letters", "svhn", "cifar10", "cifar100", "cinic10", "femnist"]

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("name", NAMED)
def test_missing_data_tells_what_was_looked_for_and_where(name, tmp_path):
    with pytest.raises(DataError, match=f"data {name} is not in .*nowhere: looked there .*data.folder"):
        load_dataset(name, tmp_path / "nowhere")


@pytest.mark.parametrize("below", ["", "mnist"])
def test_mnist_is_read_from_parquet(below, tmp_path):
    train, test = images(6, 28, 28), images(3, 28, 28, seed=1)
    write_parquet(tmp_path / below / "train-0.parquet", train, range(6))
    write_parquet(tmp_path / below / "test-0.parquet", test, [0, 1, 2])
    data = load_dataset("mnist", tmp_path)
    assert np.array_equal(data.train.images[:, 0], train)
    assert data.train.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert np.array_equal(data.test.images[:, 0], test)
    assert (data.mean, data.std, data.classes) == ((0.1307,), (0.3081,), 10)


@pytest.mark.parametrize(
    ("name", "image", "label", "classes"),
    [("cifar10", "img", "label", 10), ("cifar100", "img", "fine_label", 100)],
)
def test_cifar_columns_are_known(name, image, label, classes, tmp_path):
    pixels = images(4, 32, 32, 3)
    write_parquet(tmp_path / "train-0.parquet", pixels, [0, 1, 2, 9], image, label)
    write_parquet(tmp_path / "test-0.parquet", pixels[:1], [3], image, label)
    data = load_dataset(name, tmp_path)
    assert data.shape == (3, 32, 32)
    assert data.classes == classes
    assert np.array_equal(np.moveaxis(data.train.images, 1, 3), pixels)


def test_emnist_letters_stand_upright_and_count_from_zero(tmp_path):
    raw = tmp_path / "EMNIST" / "raw"
    pixels = images(3, 28, 28)
    for part in ("train", "test"):
        write_idx(raw, f"emnist-letters-{part}", pixels, [1, 2, 26])
    data = load_dataset("emnist_letters", tmp_path)
    assert np.array_equal(data.train.images[:, 0], pixels.transpose(0, 2, 1))
    assert data.train.labels.tolist() == [0, 1, 25]
    assert data.class_names[25] == "z"


@pytest.fixture
def cinic(tmp_path):
    """Two images a class and part: a coloured one of the class's number, a grey one of 7."""
    for part in ("train", "test"):
        for index, name in enumerate(known_sets()["cifar10"].class_names):
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            (folder / "a.png").write_bytes(png(np.full((32, 32, 3), index, dtype=np.uint8)))
            (folder / "grey.png").write_bytes(png(np.full((32, 32), 7, dtype=np.uint8)))
    return tmp_path


def test_cinic_is_read_from_its_folders(cinic):
    data = load_dataset("cinic10", cinic)
    assert data.train.labels.tolist() == [label for label in range(10) for _ in range(2)]
    assert data.train.images[18].min() == data.train.images[18].max() == 9
    assert data.train.images[1].min() == data.train.images[1].max() == 7


def test_cinic_without_a_class_is_refused(cinic):
    for file in (cinic / "test" / "truck").iterdir():
        file.unlink()
    with pytest.raises(DataError, match=r"no \*.png in test/truck \(1 folders\)"):
        load_dataset("cinic10", cinic)


def test_cinic_image_of_other_size_is_named(cinic):
    (cinic / "train" / "cat" / "a.png").write_bytes(png(images(1, 31, 31, 3)[0]))
    with pytest.raises(DataError, match=r"train/cat/a.png: an image of \(3, 31, 31\)"):
        load_dataset("cinic10", cinic)


def test_leaf_femnist_keeps_its_writers(tmp_path):
    def user(label, count):
        return {"x": [[0.5] * 784] * count, "y": [label] * count}

    content = {"users": ["f2", "f1"], "user_data": {"f2": user(3, 2), "f1": user(61, 1)}}
    path = tmp_path / "all_data" / "all_data_0.json"
    path.parent.mkdir()
    path.write_text(json.dumps(content))
    data = load_dataset("femnist", tmp_path)
    assert data.writers.tolist() == [1, 1, 0]
    assert data.train.labels.tolist() == [3, 3, 61]
    assert (data.classes, data.shape, int(data.train.images.max())) == (62, (1, 28, 28), 128)


LEAF = {"users": ["a"], "user_data": {"a": {"x": [[0.5] * 784] * 2, "y": [1, 2]}}}


def test_leaf_test_folder_is_the_official_test_set(tmp_path):
    for part in ("train", "test"):
        (tmp_path / "femnist" / part).mkdir(parents=True)
        (tmp_path / "femnist" / part / "x.json").write_text(json.dumps(LEAF))
    data = load_dataset("femnist", tmp_path)
    assert (len(data.train), len(data.test)) == (2, 2)


def test_digits_need_no_files():
    data = load_dataset("digits")
    assert (len(data.train), data.shape, data.classes, data.test) == (1797, (1, 8, 8), 10, None)
    assert np.bincount(data.train.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_synthetic_features_pass_as_floats():
    data = load_dataset("synthetic", options={"samples": 20, "shape": [6], "test_samples": 5})
    assert data.train.images.dtype == np.float32
    assert data.shape == (6,)
    assert len(data.test) == 5


def test_fraction_keeps_a_share_of_every_class():
    """floor(0.1 n_c) of 178, 182, 177, ...: 17 or 18 each."""
    data = load_dataset("digits", fraction=0.1)
    assert np.bincount(data.train.labels).tolist() == [17, 18, 17, 18, 18, 18, 18, 17, 17, 18]


def test_unknown_option_of_a_source_is_told():
    with pytest.raises(
        RecipeError, match=r"data.sampels is no option of synthetic. Did you mean data.samples\?"
    ):
        load_dataset("synthetic", options={"sampels": 3})


def test_fraction_leaves_the_test_set_whole():
    options = {"samples": 40, "test_samples": 30, "classes": 2}
    data = load_dataset("synthetic", fraction=0.5, options=options)
    assert (len(data.train), len(data.test)) == (20, 30)


@pytest.mark.parametrize("shape", [[3, 4], [0], []])
def test_synthetic_shape_that_is_no_sample_is_refused(shape):
    with pytest.raises(RecipeError, match=r"data.shape"):
        load_dataset("synthetic", options={"shape": shape})


def test_default_folder_is_the_environments(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYFED_KD_DATA", str(tmp_path / "somewhere"))
    with pytest.raises(DataError, match="somewhere: looked there"):
        load_dataset("mnist")


def test_default_folder_without_environment_is_data(tmp_path, monkeypatch):
    monkeypatch.delenv("RAYFED_KD_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=f"{tmp_path}/data: looked there"):
        load_dataset("mnist")


def test_images_are_decoded_without_torch(tmp_path):
    write_parquet(tmp_path / "train-0.parquet", images(2, 28, 28), [0, 1])
    code = f"""if True:
        import sys
        from pathlib import Path
        from rayfed_kd.data.cache import open_entry
        from rayfed_kd.data.loading import load_dataset
        open_entry(load_dataset("mnist", Path({str(tmp_path)!r})).folder)
        assert "torch" not in sys.modules and "torchvision" not in sys.modules"""
    subprocess.run([sys.executable, "-c", code], check=True)
