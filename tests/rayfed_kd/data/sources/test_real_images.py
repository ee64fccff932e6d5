"""Real images, where they are: RAYFED_KD_DATA has mnist, fashion_mnist, cifar10 and cifar100."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

import rayfed_kd
from rayfed_kd.data.loading import load_dataset

FOLDER = Path(os.environ.get("RAYFED_KD_DATA", "nowhere"))
# Mean of pixels / 255 per channel, and samples, as measured by those who made the files.
MEANS = {
    "mnist": (60_000, [0.1307]),
    "fashion_mnist": (20_000, [0.2854]),
    "cifar10": (20_000, [0.4923, 0.4832, 0.4478]),
    "cifar100": (8_000, [0.5084, 0.4885, 0.4418]),
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (FOLDER / "mnist").is_dir(), reason="RAYFED_KD_DATA has no real images"),
]


@pytest.mark.parametrize("name", MEANS)
def test_decoded_pixels_have_the_means_of_the_files(name):
    data = load_dataset(name)
    samples, means = MEANS[name]
    assert len(data.train) == samples
    found = np.asarray(data.train.images).mean(axis=(0, 2, 3)) / 255
    assert found == pytest.approx(means, abs=0.0001)


def test_second_start_on_cifar_takes_less_than_two_seconds():
    load_dataset("cifar10")
    started = time.perf_counter()
    load_dataset("cifar10")
    assert time.perf_counter() - started < 2


def test_fedavg_learns_mnist_in_ten_rounds(tmp_path):
    """Logistic regression on 5,000 images reaches 90.8 %; 6,000 iid images over ten clients should, too."""
    recipe = {
        "method": {"name": "fedavg"},
        "data": {"name": "mnist", "fraction": 0.1},
        "partition": {"name": "iid", "clients": 10, "test": "official"},
        "local": {"epochs": 2, "batch_size": 32, "optimizer": {"lr": 0.05, "momentum": 0.5}},
        "rounds": 10,
        "sampling": {"fraction": 1.0},
        "evaluation": {"every": 10},
        "results": {"folder": str(tmp_path / "run")},
    }
    found = rayfed_kd.run(recipe, local=True).summary["models"]["global"]["last"]
    assert found["server_accuracy"] > 0.9
