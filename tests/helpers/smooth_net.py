"""A classifier with BatchNorm in which nothing jumps: rounding stays as small as it began.

A BatchNorm network of two channels with ReLU multiplies a difference of 1e-6 by ten thousand in one round,
when a unit flips in a batch of one sample; two correct programs then disagree.
"""

from torch import nn

from rayfed_kd import model_builder
from rayfed_kd.protocol import Classifier


@model_builder
def smooth_net(shape, classes, *, width: int = 4):
    """Two convolutions of `width` channels with BatchNorm and tanh, then a linear layer."""
    body = nn.Sequential(
        nn.Conv2d(shape[0], width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(width, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    )
    return Classifier(body, nn.Linear(4 * width, classes), 4 * width)
