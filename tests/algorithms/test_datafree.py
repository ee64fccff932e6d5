"""Data-free distillation: the student sees generated samples only."""

import numpy as np
import pytest
from runs import run_in_process

from rayfed_kd.errors import RecipeError

SMALL = {
    "method": {
        "name": "datafree",
        "teacher_rounds": 1,
        "steps": 3,
        "generator": {"name": "dafl_image", "width": 4, "latent": 8},
    },
    "data": {"name": "digits", "fraction": 0.2},
    "partition": {"name": "iid", "clients": 1},
    "local": {"epochs": 1, "batch_size": 16, "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.5}},
    "rounds": 3,
    "sampling": {"count": 1},
}


def run(*overrides):
    return run_in_process(SMALL, *overrides)


def test_nothing_travels_once_the_teacher_is_trained():
    rounds = run().tables["rounds"]
    assert [size > 0 for size in rounds["bytes_up"].to_pylist()] == [True, False, False]


def test_teacher_stays_as_it_was_trained():
    one, three = run("rounds=2"), run()
    assert np.array_equal(one.models["teacher"], three.models["teacher"])
    assert not np.array_equal(one.models["student"], three.models["student"])


def test_more_than_one_client_is_refused():
    with pytest.raises(RecipeError, match=r"partition.clients = 2: datafree trains its teacher on one"):
        run("partition.clients=2")


@pytest.mark.slow
def test_student_learns_digits_without_seeing_one():
    """Chance is 10 %. Batches of 64: the entropy of 16 samples says too little about ten classes."""
    result = run(
        "data.fraction=1.0",
        "rounds=18",
        "local.batch_size=64",
        "method={name: datafree, teacher_rounds: 8, steps: 150, generator: {name: dafl_image, width: 16}}",
        "evaluation={every: 18, samples: false}",
    )
    found = {name: model["last"]["amp"] for name, model in result.summary["models"].items()}
    assert found["teacher"] > 0.9
    assert found["student"] > 0.5
