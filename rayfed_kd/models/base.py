"""What every classifier and every image generator offers."""

from __future__ import annotations

from torch import Tensor, nn

from rayfed_kd.errors import RecipeError

Shape = tuple[int, ...]


class Classifier(nn.Module):
    """body -> features -> head -> logits.

    Args:
        body: [batch, ...] -> [batch, feature_size].
        head: the last layer, [batch, feature_size] -> [batch, classes].
        feature_size: width of the features.
    """

    def __init__(self, body: nn.Module, head: nn.Module, feature_size: int) -> None:
        super().__init__()
        self.body, self.head, self.feature_size = body, head, feature_size

    def features(self, images: Tensor) -> Tensor:
        """The input of the last layer, [batch, feature_size]."""
        features: Tensor = self.body(images)
        return features

    def classify(self, features: Tensor) -> Tensor:
        """Logits, [batch, classes]."""
        logits: Tensor = self.head(features)
        return logits

    def forward(self, images: Tensor) -> Tensor:
        """Logits, [batch, classes]."""
        return self.classify(self.features(images))


class Generator(nn.Module):
    """Noise to images.

    Args:
        body: [batch, latent] -> [batch, c, h, w] in [0, 1].
        latent: length of the noise.
    """

    def __init__(self, body: nn.Module, latent: int) -> None:
        super().__init__()
        self.body, self.latent = body, latent

    def forward(self, noise: Tensor) -> Tensor:
        """Images, [batch, c, h, w] in [0, 1]."""
        images: Tensor = self.body(noise)
        return images


class Shortcut(nn.Conv2d):
    """A strided 1x1 convolution: every stride-th pixel, then a dense 1x1 convolution.

    The same sums. oneDNN's own strided kernel, given channels-last images of fewer than 16 channels,
    writes beyond its memory in the backward pass (oneDNN issue 6035, open as of torch 2.14).
    """

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__(into, out, 1, bias=False)
        self.every = stride

    def forward(self, images: Tensor) -> Tensor:
        """[batch, into, h, w] -> [batch, out, ceil(h / stride), ceil(w / stride)]."""
        return super().forward(images[:, :, :: self.every, :: self.every])


def image_shape(shape: Shape, model: str, smallest: int, path: str = "model.name") -> tuple[int, int, int]:
    """`shape` as (channels, height, width), if each side has at least `smallest` pixels.

    Raises: RecipeError
    """
    if len(shape) != 3:
        raise RecipeError(f"{model} takes images (channels, height, width), this data has {shape}", path=path)
    channels, height, width = shape
    if min(height, width) < smallest:
        raise RecipeError(
            f"{model} takes images of {smallest}x{smallest} or more, this data has {height}x{width}",
            path=path,
        )
    return channels, height, width
