"""Generators: of images from noise alone, and of images, feature maps or features of a class."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_kd.errors import RecipeError
from rayfed_kd.models.base import ConditionalGenerator, Generator
from rayfed_kd.recipe.roles import model_builder
from rayfed_kd.recipe.sample_shapes import Shape, image_shape, shown_sides

PATH = "method.generator.name"
Latent = Annotated[int, Field(ge=1, description="length of the noise z")]
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


def _enlarged_twice(
    maps: tuple[int, int, int, int], upsampling: Upsampling, eps: float = 1e-5
) -> list[nn.Module]:
    """Twice upsampling, convolution, BatchNorm and LeakyReLU, then a last convolution; channels between."""
    layers: list[nn.Module] = []
    for into, out in pairwise(maps[:3]):
        layers += [*enlarging(into, out, upsampling), nn.BatchNorm2d(out, eps=eps), nn.LeakyReLU(0.2)]
    return [*layers, nn.Conv2d(*maps[2:], 3, padding=1)]


def _quartered(shape: Shape, generator: str) -> tuple[int, int, int]:
    """The shape of images that are enlarged twice by two: their sides are multiples of 4."""
    channels, height, across = image_shape(shape, generator, 4, PATH)
    if height % 4 or across % 4:
        raise RecipeError(
            f"{generator} makes images whose sides are multiples of 4, not {height}x{across}", path=PATH
        )
    return channels, height, across


@model_builder
def dafl_image(
    shape: Shape,
    classes: int,
    *,
    width: Annotated[int, Field(ge=2, description="channels; the published width is 128")] = 128,
    latent: Latent = 100,
    batchnorm_eps: Annotated[
        float, Field(gt=0, description="eps of the convolutions' BatchNorm; DAFL's code passes 0.8")
    ] = 1e-5,
    upsampling: Upsampling = "plain",
) -> Generator:
    """DAFL's generator: fully connected, then twice upsampling, convolution, BatchNorm, LeakyReLU; sigmoid.

    Chen et al. 2019, arXiv 1904.01186; FedKF's clients use it. 1,049,985 parameters for 1x32x32,
    1,051,139 for 3x32x32, 856,065 for 1x28x28. Images in [0, 1].
    """
    channels, height, across = _quartered(shape, "dafl_image")
    half = width // 2
    body = nn.Sequential(
        nn.Linear(latent, width * (height // 4) * (across // 4)),
        nn.Unflatten(1, (width, height // 4, across // 4)),
        nn.BatchNorm2d(width),
        # DAFL's code, and FedKF's after it, passes 0.8 by position, where BatchNorm's eps stands.
        *_enlarged_twice((width, width, half, channels), upsampling, batchnorm_eps),
        nn.Sigmoid(),
    )
    return Generator(body, latent)


class Embedded(nn.Module):
    """[batch, latent] and labels -> [batch, latent + classes, 1, 1]: the class as a learned embedding."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, classes)

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        return torch.cat([noise, self.embedding(labels)], dim=1)[:, :, None, None]


class Projected(nn.Module):
    """[batch, latent] and labels -> maps: noise and one-hot label through a layer each, side by side."""

    def __init__(self, latent: int, classes: int, maps: Shape) -> None:
        super().__init__()
        size = maps[0] * maps[1] * maps[2]
        self.noise, self.label = nn.Linear(latent, size), nn.Linear(classes, size)
        self.classes, self.maps = classes, maps

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        one_hot = F.one_hot(labels, self.classes).to(noise.dtype)
        sides = [self.noise(noise), self.label(one_hot)]
        return torch.cat([side.view(len(noise), *self.maps) for side in sides], dim=1)


class OneHot(nn.Module):
    """[batch, latent] and labels -> [batch, latent + classes]."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        return torch.cat([noise, F.one_hot(labels, self.classes).to(noise.dtype)], dim=1)


class Growing(nn.ConvTranspose2d):
    """A transposed 2x2 convolution of stride 1 as one matrix product and four shifted sums.

    The same sums as torch's, whose kernel takes nearly twice as long on maps of five places a side.
    """

    def __init__(self, into: int, out: int) -> None:
        super().__init__(into, out, 2, bias=False)

    def forward(self, maps: Tensor, output_size: list[int] | None = None) -> Tensor:
        """[batch, into, h, w] -> [batch, out, h + 1, w + 1]."""
        batch, into, height, width = maps.shape
        # Of `products` a row is a place of a map, with what it adds to the four corners of its 2x2 square.
        kernel = self.weight.permute(0, 2, 3, 1).reshape(into, -1)
        products = (maps.permute(0, 2, 3, 1).reshape(-1, into) @ kernel).view(batch, height, width, 4, -1)
        # unbind: four indices would give four gradients of all products' size, three quarters of them zeros.
        corners = zip(products.unbind(3), [(0, 0), (0, 1), (1, 0), (1, 1)], strict=True)
        first, *others = [F.pad(part, (0, 0, j, 1 - j, i, 1 - i)) for part, (i, j) in corners]
        return sum(others, first).permute(0, 3, 1, 2)


@model_builder
def fedcg_feature(
    shape: Shape,
    classes: int,
    *,
    width: Annotated[int, Field(ge=4, description="channels; the published width is 512")] = 512,
    latent: Latent = 100,
) -> ConditionalGenerator:
    """FedCG's generator of 16x5x5 feature maps: embedded label, transposed 2x2 convolutions, sigmoid.

    Wu et al. 2022, arXiv 2111.08211; KDIA's server trains it. 890,724 parameters for 10 classes,
    1,084,944 for 100; 1,792 buffer entries.
    """
    if shape != (16, 5, 5):
        raise RecipeError(
            f"fedcg_feature makes maps of 16x5x5, asked for are {shown_sides(shape)}: "
            "simple_cnn has such on 32x32 images, lenet5 on these and on 28x28. For other models give a "
            "generator of your own, method.generator.name=package.module:Object",
            path=PATH,
        )
    channels = (latent + classes, width, width // 2, width // 4)
    layers: list[nn.Module] = []
    for into, out in pairwise(channels):
        layers += [Growing(into, out), nn.BatchNorm2d(out), nn.LeakyReLU(0.2)]
    layers += [Growing(channels[-1], 16), nn.Sigmoid()]
    return ConditionalGenerator(Embedded(classes), nn.Sequential(*layers), latent, standardised=True)


@model_builder
def conditional_image(
    shape: Shape,
    classes: int,
    *,
    width: Annotated[int, Field(ge=2, description="channels; the published width is 128")] = 128,
    latent: Latent = 100,
    upsampling: Upsampling = "plain",
) -> ConditionalGenerator:
    """DaFKD's generator: noise and class through a layer each, twice upsampling and convolution; tanh.

    Wang et al. 2023, section 3.2; its last BatchNorm, without parameters, gives pixels of mean 0 and
    variance 1, as normalised images have. 573,825 parameters for 1x28x28 and 10 classes, 682,499 for
    3x32x32.
    """
    channels, height, across = _quartered(shape, "conditional_image")
    half = width // 2
    body = nn.Sequential(
        nn.BatchNorm2d(2 * half),
        *_enlarged_twice((2 * half, width, half, channels), upsampling),
        nn.Tanh(),
        nn.BatchNorm2d(channels, affine=False),
    )
    join = Projected(latent, classes, (half, height // 4, across // 4))
    return ConditionalGenerator(join, body, latent, standardised=True)


@model_builder
def dense_image(
    shape: Shape,
    classes: int,
    *,
    width: Annotated[int, Field(ge=2, description="hidden units for every 16 pixels")] = 32,
    latent: Latent = 100,
) -> ConditionalGenerator:
    """DaFKD's generator as its text has it: an embedding of noise and one of class, a fully connected layer.

    Wang et al. 2023, section 4.1, which gives no sizes: LeakyReLU and BatchNorm before the last layer, tanh
    and BatchNorm without parameters behind it, as in `conditional_image`. 1,317,968 parameters for 1x28x28
    and 10 classes.
    """
    channels, height, across = image_shape(shape, "dense_image", 4, PATH)
    maps = (width // 2, height // 4, across // 4)
    body = nn.Sequential(
        # Over maps rather than units, so that a client's last batch may have a single sample.
        nn.BatchNorm2d(2 * maps[0]),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(2 * math.prod(maps), channels * height * across),
        nn.Unflatten(1, (channels, height, across)),
        nn.Tanh(),
        nn.BatchNorm2d(channels, affine=False),
    )
    return ConditionalGenerator(Projected(latent, classes, maps), body, latent, standardised=True)


@model_builder
def dense_feature(
    shape: Shape,
    classes: int,
    *,
    hidden: Annotated[int, Field(ge=1, description="hidden units")] = 256,
    latent: Latent = 100,
    norm: Annotated[
        Literal["layer", "batch"], Field(description="LayerNorm, or BatchNorm as FedGen's code")
    ] = "layer",
) -> ConditionalGenerator:
    """A perceptron of noise and one-hot class to the features before a classifier's last layer.

    The form of FedGen's generator (Zhu et al. 2021, arXiv 2105.10056), which DaFKD's Appendix A names.
    LayerNorm by default: a client that trains it may have a last batch of a single sample.
    """
    normalising = nn.BatchNorm1d(hidden) if norm == "batch" else nn.LayerNorm(hidden)
    body = nn.Sequential(
        nn.Linear(latent + classes, hidden), normalising, nn.ReLU(), nn.Linear(hidden, shape[0])
    )
    return ConditionalGenerator(OneHot(classes), body, latent, standardised=True)
