"""LeNet-5, as FedKF uses it on EMNIST."""

from __future__ import annotations

from torch import nn

from rayfed_kd.models.base import Classifier, image_shape, pooled_relu
from rayfed_kd.recipe.roles import model_builder
from rayfed_kd.recipe.sample_shapes import Shape

# Below this, 28x28 and digits' 8x8 among them, the first convolution pads by 2 and keeps the size.
UNPADDED = 32


@model_builder
def lenet5(shape: Shape, classes: int) -> Classifier:
    """Two 5x5 convolutions (6, 16) with ReLU and 2x2 max pooling, fully connected 120, 84, classes.

    LeCun et al. 1998; 61,706 parameters for 1x28x28 and 10 classes. Images below 32x32 are padded by
    2 in the first convolution; where the second would see fewer than 6 pixels, it is padded, too.
    """
    channels, height, width = image_shape(shape, "lenet5", 4)
    first = 0 if min(height, width) >= UNPADDED else 2
    # 12 pixels are pooled to 6; the convolution leaves 2 of them, and the second pooling 1.
    second = 0 if min(height, width) + 2 * first - 4 >= 12 else 2
    sides = [((side + 2 * first - 4) // 2 + 2 * second - 4) // 2 for side in (height, width)]
    flat = 16 * sides[0] * sides[1]
    body = nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=first),
        *pooled_relu(),
        nn.Conv2d(6, 16, 5, padding=second),
        *pooled_relu(),
        nn.Flatten(),
        nn.Linear(flat, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
    )
    return Classifier(body, nn.Linear(84, classes), 84)
