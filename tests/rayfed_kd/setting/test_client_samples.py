"""Clients' samples: which batches they make, whether a model can train on them, and who is tested."""

import pytest
import torch
from small_recipes import THREE_CLIENTS
from torch import nn

from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.recipe.sample_shapes import RowShape, TextShape
from rayfed_kd.recipe.sections.local_training import LocalRecipe
from rayfed_kd.setting.client_samples import single_sample_fault

OWN = """
import numpy as np
from torch import nn
from rayfed_kd import partition_scheme
from rayfed_kd.recipe.roles import model_builder


@model_builder
def normalised(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))


@partition_scheme
def sizes(pool, clients, stream, *, of: list[int]):
    return np.split(np.arange(sum(of)), np.cumsum(of)[:-1])
"""


@pytest.fixture
def own(own_module):
    """The name of a module with a model with BatchNorm, and a partition by sizes."""
    return own_module("own_samples", OWN)


def recipe(own, sizes, *, model="normalised", **local):
    """A recipe of clients of these sizes, of which a fifth is for tests."""
    return {
        **THREE_CLIENTS,
        "model": {"name": f"{own}:{model}" if model == "normalised" else model},
        "data": {"name": "digits"},
        "partition": {"name": f"{own}:sizes", "clients": len(sizes), "of": list(sizes)},
        "local": {"epochs": 1, **local},
    }


@pytest.mark.parametrize(
    ("last_batch", "samples", "sizes"),
    [
        ("keep", 65, [32, 32, 1]),
        ("drop", 65, [32, 32]),
        ("join", 65, [32, 33]),
        ("join", 63, [32 + 31]),
        *[(word, 64, [32, 32]) for word in ("keep", "drop", "join")],
        *[(word, 7, [7]) for word in ("keep", "drop", "join")],
        *[(word, 0, []) for word in ("keep", "drop", "join")],
    ],
)
def test_a_last_short_batch_is_kept_left_out_or_joined(last_batch, samples, sizes):
    assert LocalRecipe(batch_size=32, last_batch=last_batch).batch_sizes(samples) == sizes
    assert LocalRecipe(batch_size=5, last_batch=last_batch).batch_sizes(samples, 32) == sizes


def test_batch_of_one_sample_is_refused_before_round_1_where_batchnorm_would_fail(own):
    """41 samples, a fifth for tests: 33 to train on are 32 and one."""
    told = (
        r"local.last_batch = 'keep': client 1 has 33 samples to train on, and local.batch_size = 32 leaves a "
        r"batch of one, as at 2 of 3 clients; .*Expected more than 1 value per channel.*; expected "
        r"local.last_batch=join or drop"
    )
    with pytest.raises(RecipeError, match=told):
        prepare(recipe(own, (60, 41, 41), batch_size=32))
    for last_batch in ("join", "drop"):
        prepare(recipe(own, (60, 41, 41), batch_size=32, last_batch=last_batch))
    prepare(recipe(own, (60, 41, 41), batch_size=31))
    prepare(recipe(own, (60, 41, 41), batch_size=32, model="mlp"))


@pytest.mark.parametrize(
    ("sizes", "local", "cure"),
    [
        ((60, 60), {"batch_size": 1}, "a local.batch_size of 2 or more"),
        ((60, 1), {"batch_size": 8, "last_batch": "join"}, "two samples or more for each client"),
    ],
)
def test_cure_is_one_that_helps(own, sizes, local, cure):
    with pytest.raises(RecipeError, match=f"expected {cure}"):
        prepare(recipe(own, sizes, **local))


def test_client_without_a_whole_batch_is_refused_where_short_ones_are_dropped(own):
    with pytest.raises(RecipeError, match=r"'drop': client 1 has 16 samples to train on, fewer than .* = 32"):
        prepare(recipe(own, (60, 20), batch_size=32, last_batch="drop", model="mlp"))


def test_meme_of_the_recipes_model_counts_where_clients_have_others(own):
    """FML's clients train the recipe's model beside their own, which has no BatchNorm."""
    mixed = {**recipe(own, (60, 41, 41), batch_size=32), "method": {"name": "fml"}}
    with pytest.raises(RecipeError, match=r"client 1 has 33 samples to train on"):
        prepare({**mixed, "client_models": {"models": [{"name": "mlp"}]}})


def test_recipe_in_which_nobody_has_a_test_sample_is_refused(own):
    """Two samples a client: a fifth of two is none."""
    with pytest.raises(RecipeError, match=r"none of the 3 clients has a test sample, and digits has no off"):
        prepare(recipe(own, (2, 2, 2), model="mlp"))
    prepare(recipe(own, (2, 2, 20), model="mlp"))
    # An official test set suffices for one model, not for each client's own.
    official = recipe(own, (2, 2, 2), model="mlp") | {"data": {"name": "synthetic", "test_samples": 9}}
    prepare(official)
    with pytest.raises(RecipeError, match="has a test sample, which their own models need; expected"):
        prepare(official | {"method": {"name": "fedper", "personal": ["F2"]}})


class Standardised(nn.Module):
    """Divides by the number of samples less one, as a deviation over the batch does."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        hidden = self.layer(x.flatten(1))
        return (hidden - hidden.mean(0)) * (len(x) - 1) / (len(x) - 1)


class Squeezed(Standardised):
    def forward(self, x):
        return self.layer(x.flatten(1)).squeeze()


def convolution(normalised):
    return nn.Sequential(nn.Conv2d(1, 4, 2), normalised, nn.Flatten(), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("module", "shape", "fails"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3)), (1, 2, 2), True),
        (convolution(nn.BatchNorm2d(4)), (1, 2, 2), True),
        (convolution(nn.GroupNorm(1, 4)), (1, 2, 2), False),
        (nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(4, 3)), (1, 2, 2), False),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.LayerNorm(3), nn.Dropout(0.5)), (1, 2, 2), False),
        (convolution(nn.InstanceNorm2d(4)), (1, 2, 2), False),  # on two samples neither: no matter of batches
        (Standardised(), (1, 2, 2), True),
        (Squeezed(), (1, 2, 2), True),
        (nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 3)), TextShape(3, 7), False),
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), RowShape(2, (3, 5)), True),
    ],
)
def test_one_trial_decides_whether_a_model_trains_on_one_sample(module, shape, fails):
    before = torch.get_rng_state()
    assert (single_sample_fault(module, shape) is not None) is fails
    assert torch.equal(torch.get_rng_state(), before)
