"""Image generators."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import nn

from rayfed_kd.errors import RecipeError
from rayfed_kd.models.base import Generator, image_shape
from rayfed_kd.recipe.roles import model_builder
from rayfed_kd.recipe.sample_shapes import Shape


@model_builder
def dafl_image(
    shape: Shape,
    classes: int,
    *,
    width: Annotated[int, Field(ge=2, description="channels; the published width is 128")] = 128,
    latent: Annotated[int, Field(ge=1, description="length of the noise z")] = 100,
    batchnorm_eps: Annotated[
        float, Field(gt=0, description="eps of the convolutions' BatchNorm; DAFL's code passes 0.8")
    ] = 1e-5,
) -> Generator:
    """DAFL's generator: fully connected, then twice upsampling, convolution, BatchNorm, LeakyReLU; sigmoid.

    Chen et al. 2019, arXiv 1904.01186; FedKF's clients use it. 1,049,985 parameters for 1x32x32,
    1,051,139 for 3x32x32, 856,065 for 1x28x28. Images in [0, 1].
    """
    path = "method.generator.name"
    channels, height, across = image_shape(shape, "dafl_image", 4, path)
    if height % 4 or across % 4:
        raise RecipeError(
            f"dafl_image makes images whose sides are multiples of 4, not {height}x{across}", path=path
        )
    half = width // 2
    body = nn.Sequential(
        nn.Linear(latent, width * (height // 4) * (across // 4)),
        nn.Unflatten(1, (width, height // 4, across // 4)),
        nn.BatchNorm2d(width),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(width, width, 3, padding=1),
        # DAFL's code, and FedKF's after it, passes 0.8 by position, where BatchNorm's eps stands.
        nn.BatchNorm2d(width, eps=batchnorm_eps),
        nn.LeakyReLU(0.2),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(width, half, 3, padding=1),
        nn.BatchNorm2d(half, eps=batchnorm_eps),
        nn.LeakyReLU(0.2),
        nn.Conv2d(half, channels, 3, padding=1),
        nn.Sigmoid(),
    )
    return Generator(body, latent)
