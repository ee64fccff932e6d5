"""ResNets: 8 layers with GroupNorm (FedKF on CIFAR); bottlenecks with BatchNorm (DaFKD, FedGEMS)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_kd.models.base import Classifier, Counts, Shortcut
from rayfed_kd.recipe.roles import model_builder
from rayfed_kd.recipe.sample_shapes import Shape, image_shape


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut; GroupNorm with one channel per group.

    He et al. 2016, arXiv 1512.03385, section 3. BatchNorm's running statistics do not fit
    heterogeneous clients, hence GroupNorm (Zhou et al. 2023, section V-A).
    """

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(out, out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(out, out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or into != out:
            self.shortcut = nn.Sequential(Shortcut(into, out, stride), nn.GroupNorm(out, out))

    def forward(self, images: Tensor) -> Tensor:
        """[batch, into, h, w] -> [batch, out, h / stride, w / stride]."""
        inner = F.relu(self.norm1(self.conv1(images)))
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(images))


@model_builder
def resnet8(
    shape: Shape, classes: int, *, width: Annotated[int, Field(ge=1, description="stem channels")] = 64
) -> Classifier:
    """3x3 stem of `width`, one basic block each at width, 2 width, 4 width, average pooling.

    1,227,594 parameters for 3x32x32 and 10 classes; width 16: 78,042.
    """
    # GroupNorm over a single pixel forgets the image: 4x4 would be 1x1 in the last block, 5x5 is 2x2.
    channels, _, _ = image_shape(shape, "resnet8", 5)
    body = nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.GroupNorm(width, width),
        nn.ReLU(),
        BasicBlock(width, width, 1),
        BasicBlock(width, 2 * width, 2),
        BasicBlock(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return Classifier(body, nn.Linear(4 * width, classes), 4 * width)


EXPANSION = 4
Blocks = Annotated[Counts, Field(min_length=3, max_length=3, description="bottlenecks a stage")]


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions with BatchNorm, four times as many channels out, and a shortcut.

    He et al. 2016, arXiv 1512.03385, section 4.1.
    """

    def __init__(self, into: int, inner: int, stride: int, *, projected: bool) -> None:
        super().__init__()
        out = EXPANSION * inner
        self.body = nn.Sequential(
            nn.Conv2d(into, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if projected:
            self.shortcut = nn.Sequential(Shortcut(into, out, stride), nn.BatchNorm2d(out))

    def forward(self, images: Tensor) -> Tensor:
        """[batch, into, h, w] -> [batch, 4 inner, h / stride, w / stride]."""
        return F.relu(self.body(images) + self.shortcut(images))


@model_builder
def bottleneck_resnet(
    shape: Shape,
    classes: int,
    *,
    blocks: Blocks = [1, 1, 1],  # noqa: B006 -- read, never changed
    width: Annotated[int, Field(ge=1, description="stem channels")] = 16,
    stem: Annotated[
        bool, Field(description="false: it takes feature maps as another model's stem gives them")
    ] = True,
) -> Classifier:
    """3x3 stem of `width`, three stages of bottlenecks (1, 2, 4 times `width`, times 4 out), average pooling.

    For 3x32x32 and 10 classes: 127,642 parameters with blocks [1, 1, 1] (ResNet-11), 220,378 with
    [2, 2, 2], 405,850 with [4, 4, 4], 591,322 with [6, 6, 6], 1,147,738 with [12, 12, 12]; 464 of them the
    stem's.
    """
    into, _, _ = image_shape(shape, "bottleneck_resnet", 5)
    layers: list[nn.Module] = []
    if stem:
        convolution = nn.Conv2d(into, width, 3, padding=1, bias=False)
        layers.append(nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU()))
        into = width
    for stage, count in enumerate(blocks):
        inner = width * 2**stage
        for block in range(count):
            stride = 2 if stage and block == 0 else 1
            layers.append(Bottleneck(into, inner, stride, projected=block == 0))
            into = EXPANSION * inner
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return Classifier(nn.Sequential(*layers), nn.Linear(into, classes), into)
