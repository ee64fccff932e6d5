"""Made-up texts and rows can be learned, and differ by author and region."""

import numpy as np
import pytest
from runs import run_in_process

from rayfed_kd.data.loading import load_dataset

pytestmark = pytest.mark.usefixtures("own_cache")

RUN = {
    "method": {"name": "fedavg"},
    "partition": {"name": "iid", "clients": 2},
    "local": {"epochs": 2, "batch_size": 16, "optimizer": {"name": "adam", "lr": 0.01}},
    "sampling": {"fraction": 1.0},
    "rounds": 2,
}


@pytest.mark.parametrize(
    ("data", "model"),
    [
        ({"name": "synthetic_text", "samples": 400}, {"name": "fast_text"}),
        ({"name": "synthetic_table", "samples": 400}, {"name": "mlp"}),
        ({"name": "synthetic_table", "samples": 400, "categories": "codes"}, {"name": "row_mlp"}),
    ],
)
def test_classes_can_be_learned(data, model):
    """Four or three classes, equally frequent: guessing gives 0.33 at best."""
    rows = run_in_process({**RUN, "data": data, "model": model}).tables["metrics"].to_pylist()
    assert rows[-1]["amp"] > 0.5


@pytest.mark.parametrize("name", ["synthetic_text", "synthetic_table"])
def test_the_seed_decides_and_test_samples_are_others(name):
    options = {"samples": 60, "test_samples": 30}
    data, again = (load_dataset(name, options=options) for _ in range(2))
    other = load_dataset(name, options={**options, "data_seed": 1})
    assert np.array_equal(data.train.images, again.train.images)
    assert not np.array_equal(data.train.images, other.train.images)
    assert (len(data.train), len(data.test)) == (60, 30)
    assert np.bincount(np.concatenate([data.train.labels, data.test.labels])).min() >= 22


def test_authors_have_words_of_their_own():
    """The share of an author's tokens that is the same token for another author: less than half for some."""
    data = load_dataset("synthetic_text", options={"authors": 2, "samples": 200})
    seen = [set(data.train.images[data.writers == author].ravel().tolist()) for author in range(2)]
    assert seen[0] - seen[1]
    assert np.array_equal(data.writers, data.columns["author"])
    assert set(load_dataset("synthetic_table").columns) == {"job", "region"}
