"""ResNet-8 with GroupNorm, as FedKF uses it on CIFAR."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_kd.models.base import Classifier, Shape, Shortcut, image_shape


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
