"""Whether generated images and the data's are numbers of one range; if not, one line before round 1."""

import numpy as np
import pytest
from small_recipes import FOUR_CLIENTS

from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare

pytestmark = pytest.mark.usefixtures("own_cache")

GENERATING = {"name": "fedkf", "generator": {"name": "dafl_image", "width": 4, "latent": 8}}


def prepared(folder, images, method=GENERATING, **data):
    np.savez(folder / "a.npz", x_train=images, y_train=np.arange(len(images)) % 2)
    return prepare(
        {
            **FOUR_CLIENTS,
            "method": method,
            "data": {"name": "npz", "folder": str(folder), "file": "a.npz", **data},
            "partition": {"name": "iid", "clients": 2},
            "sampling": {"fraction": 1.0},
        }
    )


UNIT = np.linspace(0, 1, 8 * 64).reshape(8, 8, 8)


@pytest.mark.parametrize(
    ("images", "pixels"),
    [
        ((UNIT * 255).astype(np.uint8), "standard"),
        ((UNIT * 255).astype(np.uint8), "symmetric"),
        (UNIT, "standard"),
        (2 * UNIT - 1, "symmetric"),
        ((UNIT * 255).round() / 127.5 - 1, "symmetric"),
    ],
)
def test_images_where_generated_ones_are_may_be_generated(images, pixels, tmp_path):
    assert prepared(tmp_path, images, pixels=pixels)


@pytest.mark.parametrize(
    ("images", "pixels", "message"),
    [
        (
            2 * UNIT - 1,
            "standard",
            r"fedkf generates images in \[0, 1\]; .* floats from -1 to 1\..*symmetric",
        ),
        (255 * UNIT, "standard", "floats from 0 to 255"),
        (UNIT, "symmetric", r"fedkf generates images in \[-1, 1\]; .* floats from 0 to 1\."),
        (3 * UNIT - 1.5, "symmetric", "floats from -1.5 to 1.5"),
    ],
)
def test_images_elsewhere_are_refused_by_methods_that_generate_them(images, pixels, message, tmp_path):
    with pytest.raises(RecipeError, match=f"method.name: .*{message}"):
        prepared(tmp_path, images, pixels=pixels)
    assert prepared(tmp_path, images, {"name": "fedavg"}, pixels=pixels)


@pytest.mark.parametrize(
    ("method", "key", "rounds", "late"),
    [
        ("fedkf", "warmup_rounds", 2, True),
        ("fedkf", "warmup_rounds", 3, False),
        ("dafkd", "distill_from_round", 1, True),
        ("dafkd", "distill_from_round", 2, False),
    ],
)
def test_what_a_method_never_begins_is_told(method, key, rounds, late):
    asked = {**FOUR_CLIENTS, "method": {"name": method, key: 2}, "rounds": rounds, "sampling": {"count": 2}}
    told = f"method.{key} = 2: the run has {rounds} rounds, and what begins then never does"
    assert (told in prepare(asked).setting.notes) == late
