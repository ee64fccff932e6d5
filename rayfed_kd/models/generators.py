"""Image generators, and the layers that make maps twice as large."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_kd.errors import RecipeError
from rayfed_kd.models.base import Generator, image_shape
from rayfed_kd.recipe.roles import model_builder
from rayfed_kd.recipe.sample_shapes import Shape

Upsampling = Annotated[
    Literal["plain", "folded"],
    Field(
        description="enlarged maps under a 3x3 convolution, or the same sums as one transposed convolution "
        "of the small maps: 1.6 to 2.4 times as fast on a CPU, equal up to rounding"
    ),
]


class FoldedConvolution(nn.Conv2d):
    """Nearest upsampling by two and a padded 3x3 convolution, as one transposed convolution of stride 2.

    An enlarged map has every number four times, so that the convolution multiplies it by sums of its
    weights: a number of the small map adds to 4x4 numbers of the result, each by the sum of the taps that
    meet one of its four copies. That is 16 products for a number of the small map in place of 36.
    """

    def __init__(self, into: int, out: int) -> None:
        super().__init__(into, out, 3, padding=1)

    def forward(self, maps: Tensor) -> Tensor:
        """[batch, into, h, w] -> [batch, out, 2h, 2w]."""
        # A transposed convolution turns its kernel, so the taps are turned first.
        taps = F.pad(self.weight.flip(2, 3).transpose(0, 1), (1, 1, 1, 1))
        kernel = taps[..., :-1, :] + taps[..., 1:, :]
        kernel = kernel[..., :-1] + kernel[..., 1:]
        # Channels last, as modules' weights lie: the result lies so then, which the layers behind it prefer.
        kernel = kernel.contiguous(memory_format=torch.channels_last)
        return F.conv_transpose2d(maps, kernel, self.bias, stride=2, padding=1)


def enlarging(into: int, out: int, upsampling: Upsampling) -> list[nn.Module]:
    """Nearest upsampling by two, then a 3x3 convolution; two modules, with the same names in either form."""
    if upsampling == "folded":
        return [nn.Identity(), FoldedConvolution(into, out)]
    return [nn.Upsample(scale_factor=2), nn.Conv2d(into, out, 3, padding=1)]


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
    upsampling: Upsampling = "plain",
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
        *enlarging(width, width, upsampling),
        # DAFL's code, and FedKF's after it, passes 0.8 by position, where BatchNorm's eps stands.
        nn.BatchNorm2d(width, eps=batchnorm_eps),
        nn.LeakyReLU(0.2),
        *enlarging(width, half, upsampling),
        nn.BatchNorm2d(half, eps=batchnorm_eps),
        nn.LeakyReLU(0.2),
        nn.Conv2d(half, channels, 3, padding=1),
        nn.Sigmoid(),
    )
    return Generator(body, latent)
