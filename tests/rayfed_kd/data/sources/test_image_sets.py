"""Named sets: torchvision's files in each format, and nobody else's files under their name."""

import pickle
import sys

import numpy as np
import pytest
from image_files import images, write_idx, write_parquet

from rayfed_kd.data.loading import load_dataset
from rayfed_kd.data.sources.image_sets import known_sets
from rayfed_kd.errors import DataError
from rayfed_kd.recipe.torchvision_import import import_torchvision

pytestmark = pytest.mark.usefixtures("own_cache")


def write_set(folder, pixels, names=None):
    """A Parquet file with a class for each image."""
    write_parquet(folder / "train-0.parquet", pixels, range(len(pixels)), names=names)


def test_another_sets_images_are_refused(tmp_path):
    write_set(tmp_path, images(3, 32, 32, 3))
    with pytest.raises(DataError, match=r"images are \(3, 32, 32\), expected \(1, 28, 28\)"):
        load_dataset("mnist", tmp_path)


def test_another_sets_classes_are_refused(tmp_path):
    write_set(tmp_path, images(3, 28, 28), names=known_sets()["mnist"].class_names)
    with pytest.raises(DataError, match=r"10 classes are 0, 1, 2, ..., expected the 10 of fashion_mnist"):
        load_dataset("fashion_mnist", tmp_path)


def test_class_names_may_be_spelt_otherwise(tmp_path):
    names = ["T - shirt / top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag"]
    write_set(tmp_path, images(3, 28, 28), names=[*names, "Ankle boot"])
    assert load_dataset("fashion_mnist", tmp_path).class_names[9] == "ankle boot"


def test_cifar100_never_takes_cifar10s_labels(tmp_path):
    write_set(tmp_path, images(3, 32, 32, 3), names=known_sets()["cifar10"].class_names)
    with pytest.raises(DataError, match="the columns are image, label; expected fine_label"):
        load_dataset("cifar100", tmp_path)


def test_parquet_letters_are_not_guessed_at(tmp_path):
    """Copies of EMNIST differ in orientation and first label."""
    write_set(tmp_path, images(3, 28, 28))
    with pytest.raises(DataError, match="emnist_letters is not in"):
        load_dataset("emnist_letters", tmp_path)


def test_own_folder_of_a_set_goes_first(tmp_path):
    write_set(tmp_path, images(2, 28, 28))
    write_set(tmp_path / "mnist", images(5, 28, 28))
    assert len(load_dataset("mnist", tmp_path).train) == 5


def test_fashion_is_read_from_torchvisions_files(tmp_path):
    pixels = images(3, 28, 28)
    raw = tmp_path / "fashion_mnist" / "FashionMNIST" / "raw"
    write_idx(raw, "train", pixels, [9, 0, 1])
    write_idx(raw, "t10k", pixels[:1], [4])
    data = load_dataset("fashion_mnist", tmp_path)
    assert np.array_equal(data.train.images[:, 0], pixels)
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([9, 0, 1], [4])
    assert data.notes[0].endswith("part here: 3 and 1 images for training and test, of 60,000 and 10,000")


def test_truncated_file_is_told(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    write_idx(raw, "train", images(3, 28, 28), [0, 1, 2])
    write_idx(raw, "t10k", images(3, 28, 28), [0, 1, 2])
    file = raw / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match=f"data mnist in {tmp_path}: torchvision cannot read it"):
        load_dataset("mnist", tmp_path)


def test_missing_torchvision_is_told(tmp_path, monkeypatch):
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"any")
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(DataError, match=r"data cifar10 in .*: needs torchvision"):
        load_dataset("cifar10", tmp_path)


def test_torchvision_cifar100_gives_fine_labels(tmp_path, monkeypatch):
    """torchvision checks the originals' sums, which files made here cannot have."""
    import_torchvision()
    from torchvision import datasets

    monkeypatch.setattr(datasets.CIFAR100, "_check_integrity", lambda self: True)
    monkeypatch.setattr(datasets.CIFAR100, "_load_meta", lambda self: None)
    pixels = images(2, 3, 32, 32)
    entry = {"data": pixels.reshape(2, -1), "fine_labels": [99, 3], "coarse_labels": [1, 2]}
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for part in ("train", "test"):
        (folder / part).write_bytes(pickle.dumps(entry))
    data = load_dataset("cifar100", tmp_path)
    assert data.train.labels.tolist() == [99, 3]
    assert np.array_equal(data.train.images, pixels)
    assert [data.class_names[label] for label in data.train.labels] == ["worm", "bear"]


@pytest.fixture
def unchecked_svhn(monkeypatch):
    """torchvision's SVHN without its check of the originals' sums."""
    import_torchvision()
    from torchvision.datasets import svhn

    monkeypatch.setattr(svhn, "check_integrity", lambda *arguments: True)


def test_svhn_is_read_from_its_mat_files(tmp_path, unchecked_svhn):
    """Stored as [h, w, c, n], with 10 for the digit 0."""
    scipy_io = pytest.importorskip("scipy.io")
    pixels = images(3, 3, 32, 32)
    for part in ("train", "test"):
        stored = {"X": pixels.transpose(2, 3, 1, 0), "y": np.array([[10], [1], [9]], dtype=np.uint8)}
        scipy_io.savemat(tmp_path / f"{part}_32x32.mat", stored)
    data = load_dataset("svhn", tmp_path)
    assert data.train.labels.tolist() == [0, 1, 9]
    assert np.array_equal(data.train.images, pixels)


def test_svhn_without_scipy_tells_what_to_install(tmp_path, unchecked_svhn, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    (tmp_path / "train_32x32.mat").write_bytes(b"any")
    with pytest.raises(DataError, match="pip install scipy"):
        load_dataset("svhn", tmp_path)


def test_svhns_test_file_counts_for_the_cache(tmp_path):
    from rayfed_kd.data.sources.image_sets import svhn

    for part in ("train", "test"):
        (tmp_path / f"{part}_32x32.mat").write_bytes(b"any")
    assert [file.name for file in svhn(tmp_path).files] == ["test_32x32.mat", "train_32x32.mat"]
