"""What each classifier and generator by name is built for, and random samples of it."""

import torch

from rayfed_kd.models.base import blank
from rayfed_kd.recipe.sample_shapes import RowShape, TextShape

OF_TEXT = ("word_bag", "fast_text", "text_transformer")
# Of those that take or make no images.
SPACES = {
    "fedcg_feature": (16, 5, 5),
    "dense_feature": (12,),
    "row_mlp": RowShape(3, [4, 2]),
    **dict.fromkeys(OF_TEXT, TextShape(5, 30)),
}


def space_of(name):
    """The shape of a model's samples, 3x32x32 where it takes images."""
    return SPACES.get(name, (3, 32, 32))


def samples_of(name, count):
    """[count, ...] samples that a classifier takes: normal numbers, or codes."""
    shape = space_of(name)
    if name in OF_TEXT or name == "row_mlp":
        return torch.randint(0, 2, (count, *shape)).to(blank(shape, 0).dtype)
    return torch.randn(count, *shape)
