"""Folders that PFLlib generates: what is read, and what is refused without running it."""

import io
import json
import os
import pickle
import zipfile

import numpy as np
import pytest
from runs import run_in_process
from small_recipes import THREE_CLIENTS

from rayfed_kd.data.loading import load_dataset
from rayfed_kd.data.sources.pfllib import PlainUnpickler
from rayfed_kd.errors import DataError, RecipeError
from rayfed_kd.experiment.preparation import prepare

pytestmark = pytest.mark.usefixtures("own_cache")

CLIENTS = 3
PIXELS = np.random.default_rng(0).integers(0, 256, (30, 1, 8, 8)).astype(np.uint8)
LABELS = np.arange(30) % 5


def scaled(pixels, mean=0.5, deviation=0.5):
    """As torchvision's ToTensor and Normalize make them of pixels."""
    return ((pixels.astype(np.float32) / 255) - np.float32(mean)) / np.float32(deviation)


def write_client(file, samples, labels):
    with file.open("wb") as stream:
        np.savez_compressed(stream, data={"x": samples, "y": labels})


def held(client, part):
    """Which samples: seven of a client's ten for training."""
    start = 10 * client
    return slice(start, start + 7) if part == "train" else slice(start + 7, start + 10)


def write_folder(folder, samples, **config):
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        for client in range(CLIENTS):
            own = held(client, part)
            write_client(folder / part / f"{client}.npz", samples[own], LABELS[own])
    told = {"num_clients": CLIENTS, "num_classes": 5, "partition": "dir", **config}
    (folder / "config.json").write_text(json.dumps(told))
    return folder


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "MNIST", scaled(PIXELS))


@pytest.mark.parametrize(("mean", "deviation"), [(0.5, 0.5), (0.0, 1.0)])
def test_scaled_images_are_the_pixels_that_they_were_and_models_see_the_same_numbers(
    tmp_path, mean, deviation
):
    data = load_dataset("pfllib", write_folder(tmp_path / "data", scaled(PIXELS, mean, deviation)))
    assert data.train.images.dtype == np.uint8
    assert np.array_equal(data.train.images, PIXELS)
    assert (data.mean, data.std) == ((mean,), (deviation,))
    assert data.train.labels.tolist() == LABELS.tolist()
    assert data.class_names == ("0", "1", "2", "3", "4")


def test_numbers_that_are_no_pixels_stay_as_they_are(tmp_path):
    values = np.random.default_rng(1).normal(size=(30, 2, 3, 3)).astype(np.float32)
    data = load_dataset("pfllib", write_folder(tmp_path / "data", values))
    assert np.array_equal(data.train.images, values)
    assert (data.mean, data.std) == ((0.0, 0.0), (1.0, 1.0))


TOKENS = np.random.default_rng(2).integers(1, 50, (30, 6))


def test_texts_with_their_lengths_are_rows_of_tokens(tmp_path):
    """As AGNews: pairs of a list of tokens, padded with 0, and its length."""
    tokens = TOKENS.copy()
    tokens[:, 4:] = 0
    pairs = np.empty((30, 2), dtype=object)
    for row, own in enumerate(tokens.tolist()):
        pairs[row, 0], pairs[row, 1] = own, 4
    data = load_dataset("pfllib", write_folder(tmp_path / "data", pairs))
    assert np.array_equal(data.train.images, tokens)
    assert (data.shape, data.shape.vocabulary) == ((6,), tokens.max() + 1)


def test_characters_are_numbered_from_1_because_0_is_padding(tmp_path):
    data = load_dataset("pfllib", write_folder(tmp_path / "data", TOKENS - 1))
    assert np.array_equal(data.train.images, TOKENS)


def recipe_of(folder, **partition):
    return {
        **THREE_CLIENTS,
        "data": {"name": "pfllib", "folder": str(folder)},
        "partition": {"name": "from_source", "clients": CLIENTS, **partition},
        "local": {"epochs": 1, "batch_size": 10},
        "rounds": 1,
    }


def test_each_client_keeps_its_own_training_and_test_samples(folder):
    setting = prepare(recipe_of(folder)).setting
    partition, images = setting.partition, setting.dataset.train.images
    for client in range(CLIENTS):
        for part, indices in (("train", partition.train[client]), ("test", partition.test[client])):
            assert np.array_equal(images[indices], PIXELS[held(client, part)])
    assert run_in_process(recipe_of(folder)).tables["clients"]["samples"].to_pylist() == [3] * CLIENTS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": 2}, "partition.clients = 2: the data come divided among 3 clients; expected 3"),
        (
            {"name": "dirichlet", "alpha": 0.1},
            "expected from_source, as 'partition={name: from_source, clients: 3}'",
        ),
        ({"test": "official"}, "pfllib has no official test set; use 'local'"),
    ],
)
def test_what_does_not_fit_the_division_is_refused_before_the_first_round(folder, changes, message):
    with pytest.raises(RecipeError, match=message):
        prepare(recipe_of(folder, **changes))


def test_other_data_have_no_division(folder):
    recipe = recipe_of(folder) | {"data": {"name": "digits", "fraction": 0.1}}
    with pytest.raises(RecipeError, match="comes without clients' training and test parts; pfllib"):
        prepare(recipe)


def says(folder, clients, classes):
    (folder / "config.json").write_text(f'{{"num_clients": {clients}, "num_classes": {classes}}}')


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda at: (at / "train").rename(at / "other"), "has no folder train"),
        (lambda at: (at / "train/1.npz").unlink(), "no 1.npz"),
        (lambda at: (at / "test/2.npz").unlink(), "2 in test"),
        (lambda at: says(at, 20, 5), "num_clients = 20"),
        (lambda at: says(at, 3, 4), "num_classes = 4, and there are labels from 0 to 4"),
        (lambda at: os.truncate(at / "train/0.npz", 100), "not as PFLlib writes it"),
        (lambda at: np.savez(at / "train/0.npz", data=np.arange(3)), "expected a pickled mapping"),
        (lambda at: write_client(at / "train/0.npz", scaled(PIXELS[:7]), LABELS[:7] * 1.0), "y is float64"),
        (
            lambda at: write_client(at / "train/1.npz", scaled(PIXELS[:7, :, :4]), LABELS[:7]),
            "expected one kind",
        ),
    ],
)
def test_what_is_broken_is_one_message(folder, spoil, message):
    spoil(folder)
    with pytest.raises(DataError, match=message):
        load_dataset("pfllib", folder)


class Call:
    """A pickle that calls a function when it is read."""

    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


def test_a_pickle_that_would_run_code_is_refused_and_nothing_is_called(folder, tmp_path):
    trace = tmp_path / "trace"
    write_client(folder / "train/0.npz", Call(open, str(trace), "w"), LABELS[:7])
    with pytest.raises(DataError, match=r"io\.open, which no array needs; nothing was called"):
        load_dataset("pfllib", folder)
    assert not trace.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("core", ["numpy._core.", "numpy.core."])
def test_arrays_of_every_protocol_and_numpy_are_read(protocol, core):
    content = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": [np.int64(1), 2]}
    written = pickle.dumps(content, protocol)
    if protocol < 4:  # later ones say a name's length as well
        written = written.replace(b"numpy._core.", core.encode())
    read = PlainUnpickler(io.BytesIO(written)).load()
    assert np.array_equal(read["x"], content["x"])
    assert read["y"] == [1, 2]


def test_an_npz_without_data_is_refused(folder):
    with zipfile.ZipFile(folder / "train/0.npz", "w") as archive:
        archive.writestr("other.npy", b"")
    with pytest.raises(DataError, match=r"no item named 'data.npy'"):
        load_dataset("pfllib", folder)
