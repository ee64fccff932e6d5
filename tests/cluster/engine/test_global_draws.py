"""Modules that draw from torch's global generator, as dropout does, draw the same in every process."""

import pytest
import torch
from runs import run_in_process
from small_recipes import FOUR_CLIENTS, small_recipe

from rayfed_kd.recipe.seeds import derive, global_stream

MODEL = """
from torch import nn


class Dropped(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.flat = nn.Flatten()
        self.hidden = nn.Linear(shape[0] * shape[1] * shape[2], 8)
        self.dropout = nn.Dropout(0.5)
        self.last = nn.Linear(8, classes)

    def forward(self, images):
        return self.last(self.dropout(self.hidden(self.flat(images))))
"""


@pytest.mark.parametrize("method", ["fedavg", "feddf"])
def test_dropout_draws_the_same_whatever_the_process_drew_before(method, own_module):
    """FedDF's server trains, too. Other masks give other weights: the module does drop."""
    own_module("dropped", MODEL)
    recipe = small_recipe(FOUR_CLIENTS, method) | {"model": {"name": "dropped:Dropped"}, "rounds": 2}
    recipe |= {"sampling": {"fraction": 1.0}, "evaluation": {"samples": False}}
    vectors = []
    for seed, before in ((1, 5), (1, 6), (2, 5)):
        torch.manual_seed(before)
        (vector, *_) = run_in_process(recipe | {"seed": seed}).models.values()
        vectors.append(vector)
        assert torch.initial_seed() == before
    assert (vectors[0] == vectors[1]).all()
    assert (vectors[0] != vectors[2]).any()


@pytest.mark.parametrize("method", ["fedavg", "standalone"])
def test_dropout_in_an_evaluation_draws_the_same_whatever_the_process_drew_before(method, own_module):
    own_module("dropped", MODEL.replace("(self.hidden", ".train()(self.hidden"))
    recipe = small_recipe(FOUR_CLIENTS, method) | {"model": {"name": "dropped:Dropped"}, "rounds": 2}
    recipe |= {"sampling": {"fraction": 1.0}}
    seen = []
    for seed, before in ((1, 5), (1, 6), (2, 5)):
        torch.manual_seed(before)
        rows = run_in_process(recipe | {"seed": seed}).tables["clients"]
        seen.append(rows["correct"].to_pylist())
    assert seen[0] == seen[1] != seen[2]


def test_global_generator_is_the_named_stream_within_the_block_and_as_before_after_it():
    torch.manual_seed(7)
    first = torch.rand(3)
    torch.manual_seed(7)
    with global_stream(1, "step", 2):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), first)
    torch.manual_seed(derive(1, "step", 2))
    assert torch.equal(torch.rand(3), inside)
