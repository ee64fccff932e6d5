"""Augmentation as batched tensor operations, every draw from the given stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce

import torch
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.sample_shapes import Shape, is_image, samples_called

PAD = 4  # pixels at each edge, as in the released code of FedKF and MOON
DEGREES = 15.0  # as KDIA turns CIFAR-100


def augment(images: Tensor, name: str, stream: torch.Generator) -> Tensor:
    """Augment a batch as `data.augment` of a recipe says.

    Args:
        images: [batch, c, h, w], uint8 or float; gradient passes where pixels only move.
        name: a key of AUGMENTATIONS.
        stream: every draw comes from it, so that the same stream gives the same batch.
    Returns: the same shape and dtype.
    """
    return reduce(lambda changed, change: change(changed, stream), AUGMENTATIONS[name], images)


def check_augmentation(name: str, shape: Shape, path: str = "data.augment") -> None:
    """Refuses an augmentation that samples of `shape` cannot take, before the first batch.

    Args:
        name: of AUGMENTATIONS.
        shape: of one sample, (c, h, w) of images.
        path: where in the recipe it stands.
    Raises: RecipeError
    """
    if name == "none":
        return
    if not is_image(shape):
        raise RecipeError(
            f"{name} moves pixels, but this data set has {samples_called(shape)}; expected images, or none",
            path=path,
        )
    if name == "reflect_crop_flip" and min(shape[1:]) <= PAD:
        raise RecipeError(
            f"{name} mirrors {PAD} pixels at each edge; expected images of at least {PAD + 1}x{PAD + 1}, "
            f"not {shape[1]}x{shape[2]}",
            path=path,
            hint="crop_flip",
        )


def random_crop(images: Tensor, stream: torch.Generator, mode: str = "constant") -> Tensor:
    """Pad each image by PAD pixels and crop it back at a random place of its own.

    Args:
        images: [batch, c, h, w].
        stream: draws one place an image.
        mode: "constant" pads with zeros, "reflect" mirrors the image at its edges.
    Returns: the same shape and dtype.
    """
    batch, _, height, width = images.shape
    if mode == "constant":
        padded = F.pad(images, (PAD, PAD, PAD, PAD))
    else:
        # By places: the gradient of F.pad's reflection has no deterministic kernel on a GPU.
        padded = images[:, :, _mirrored(height)][:, :, :, _mirrored(width)]
    places = torch.randint(0, 2 * PAD + 1, (2, batch), generator=stream, device=images.device)
    rows = places[0][:, None] + torch.arange(height, device=images.device)
    columns = places[1][:, None] + torch.arange(width, device=images.device)
    index = torch.arange(batch, device=images.device)
    return padded.permute(0, 2, 3, 1)[index[:, None, None], rows[:, :, None], columns[:, None, :]].permute(
        0, 3, 1, 2
    )


def _mirrored(side: int) -> Tensor:
    """Places along a side that is mirrored at its edges by PAD, [side + 2 PAD]."""
    places = torch.arange(-PAD, side + PAD).abs()
    return torch.minimum(places, 2 * side - 2 - places)


def random_flip(images: Tensor, stream: torch.Generator) -> Tensor:
    """Mirror each image, [batch, c, h, w], left to right with probability one half."""
    flipped = torch.rand(len(images), generator=stream, device=images.device) < 0.5
    return torch.where(flipped[:, None, None, None], images.flip(3), images)


def random_rotation(images: Tensor, stream: torch.Generator) -> Tensor:
    """Turn each image, [batch, c, h, w], by an angle of its own, uniform from -DEGREES to DEGREES.

    Pixels are taken from the nearest place, zeros from outside of the image.
    """
    draws = torch.rand(len(images), generator=stream, device=images.device)
    angle = (2 * draws - 1) * (DEGREES * math.pi / 180)
    height, width = images.shape[2:]
    ratio = height / width  # affine_grid counts both sides from -1 to 1, also of an oblong image
    zero = torch.zeros_like(angle)
    first = torch.stack([angle.cos(), -angle.sin() * ratio, zero], dim=1)
    second = torch.stack([angle.sin() / ratio, angle.cos(), zero], dim=1)
    grid = F.affine_grid(torch.stack([first, second], dim=1), list(images.shape), align_corners=False)
    turned = F.grid_sample(images.float(), grid, mode="nearest", align_corners=False)
    return turned.to(images.dtype)


AUGMENTATIONS: dict[str, Sequence[Callable[[Tensor, torch.Generator], Tensor]]] = {
    "none": (),
    "crop_flip": (random_crop, random_flip),
    "reflect_crop_flip": (partial(random_crop, mode="reflect"), random_flip),
    "crop_flip_rotate": (random_crop, random_flip, random_rotation),
}
