"""What every classifier and every image generator offers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.roles import model_builder
from rayfed_kd.recipe.sample_shapes import Shape, TextShape

Counts = list[Annotated[int, Field(ge=1)]]


class Classifier(nn.Module):
    """body -> features -> head -> logits.

    Args:
        body: [batch, ...] -> [batch, feature_size]; the members of an nn.Sequential are its stages.
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

    @property
    def stages(self) -> list[nn.Module]:
        """The body's members, then the head."""
        # A subclass may compute something else than its members one after the other.
        body = list(self.body) if type(self.body) is nn.Sequential else [self.body]
        return [*body, self.head]

    @property
    def layers(self) -> dict[str, int]:
        """Layer name -> after how many stages it ends: C1, C2, ... convolve, F1, F2, ... are fully connected.

        A layer is a stage with weights and what follows it, pooling, norms and all, until the next such
        stage; what comes before the first belongs to it.
        """
        stages = self.stages
        # Of more than one dimension, unlike biases and the parameters of norms.
        weights = [next((p for p in stage.parameters() if p.dim() > 1), None) for stage in stages]
        starts = [place for place, weight in enumerate(weights) if weight is not None]
        names: list[str] = []
        for start in starts:
            kind = "C" if weights[start].dim() == 4 else "F"  # type: ignore[union-attr]
            names.append(f"{kind}{1 + sum(name[0] == kind for name in names)}")
        return dict(zip(names, [*starts[1:], len(stages)], strict=True))

    def between(self, first: int, last: int | None, hidden: Tensor) -> Tensor:
        """Run some stages only.

        Args:
            first: stages that are left out before them; 0: none, and `hidden` are images, [batch, ...].
            last: the number of stages that have run afterwards; None: all.
            hidden: what the first `first` stages gave.
        Returns: of all stages logits, [batch, classes].
        """
        for module in self.stages[first:last]:
            hidden = module(hidden)
        return hidden


def blank(shape: Shape, count: int, device: torch.device | None = None) -> Tensor:
    """Samples of zeros, [count, *shape]: black images, or texts of padding as int64."""
    dtype = torch.int64 if isinstance(shape, TextShape) else torch.float32
    return torch.zeros(count, *shape, dtype=dtype, device=device)


@contextmanager
def trial(module: nn.Module) -> Iterator[Any]:
    """The module in eval mode, then as before; no gradients, and torch's global generator stays."""
    training = module.training
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module.eval()  # a module's own `eval` may give nothing back
        yield module
    module.train(training)


def last_maps(classifier: Classifier, shape: Shape) -> tuple[int, Shape]:
    """After how many stages the last feature maps come out, and their shape (c, h, w).

    Args:
        classifier: left as it is.
        shape: of one input.
    Raises: RecipeError if no stage gives maps of more than one place.
    """
    last = None
    hidden = blank(shape, 1, next(classifier.parameters()).device)
    with trial(classifier):  # shapes alone matter
        for stage, module in enumerate(classifier.stages, start=1):
            hidden = module(hidden)
            if hidden.dim() == 4 and hidden[0, 0].numel() > 1:
                last = (stage, tuple(hidden.shape[1:]))
    if last is None:
        raise RecipeError("this classifier has no stage that gives feature maps", path="model.name")
    return last


def no_layers(module: nn.Module, path: str) -> RecipeError:
    """What to say of a module without named layers, to a method that needs them.

    Args:
        module: of somebody else.
        path: where in the recipe it stands, or its layer.
    """
    return RecipeError(
        f"a {type(module).__name__} has no named layers, which this method needs; expected a model of "
        "`rayfed-kd models`, most of torchvision's, as torchvision:resnet18, or a "
        "rayfed_kd.models.base.Classifier of a torch.nn.Sequential and a last torch.nn.Linear",
        path,
    )


def layer_shape(classifier: nn.Module, layer: str, shape: Shape, path: str) -> Shape:
    """Shape of a layer's output, where the last layer is none to cut at.

    Args:
        classifier: left as it is.
        layer: the name of one of its layers.
        shape: of one input.
        path: where in the recipe the name stands.
    Raises: RecipeError if it has no such layer, or none at all.
    """
    if not isinstance(classifier, Classifier):
        raise no_layers(classifier, path)
    names = list(classifier.layers)[:-1]
    if layer not in names:
        known = ", ".join(names) or "none: the model has a single one"
        raise RecipeError(f"{layer!r} is no layer before the model's last; there are {known}", path)
    images = blank(shape, 1, next(classifier.parameters()).device)
    with trial(classifier):
        return tuple(classifier.between(0, classifier.layers[layer], images).shape[1:])


class Generator(nn.Module):
    """Noise to images.

    Args:
        body: [batch, latent] -> [batch, c, h, w] in [0, 1].
        latent: length of the noise.

    Attributes:
        conditional: whether `forward` takes labels, [batch] int64, beside the noise.
        standardised: images are already as the model sees them, rather than in [0, 1].
    """

    conditional = False
    standardised = False

    def __init__(self, body: nn.Module, latent: int) -> None:
        super().__init__()
        self.body, self.latent = body, latent

    def forward(self, noise: Tensor) -> Tensor:
        """Images, [batch, c, h, w] in [0, 1]."""
        images: Tensor = self.body(noise)
        return images


class ConditionalGenerator(nn.Module):
    """Noise and a class to images, feature maps or features.

    Args:
        join: (noise [batch, latent], labels [batch]) -> the body's input.
        body: -> samples.
        latent: length of the noise.
        standardised: as `Generator`'s.
    """

    conditional = True

    def __init__(self, join: nn.Module, body: nn.Module, latent: int, *, standardised: bool) -> None:
        super().__init__()
        self.join, self.body, self.latent, self.standardised = join, body, latent, standardised

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        """Samples, [batch, ...]."""
        samples: Tensor = self.body(self.join(noise, labels))
        return samples


@model_builder
def linear(shape: Shape, classes: int) -> nn.Linear:
    """Make a second head beside a classifier's: one linear layer.

    Args:
        shape: of one sample's features, (feature_size,).
        classes: number of outputs.
    """
    return nn.Linear(shape[0], classes)


@model_builder
def transformer(shape: Shape, classes: int, *, outputs: int) -> nn.Sequential:
    """Make FedKTL's map from a classifier's outputs to a generator's latents.

    Zhang et al. 2024, arXiv 2403.15760.

    Args:
        shape: of one sample's logits, (classes,).
        classes: number of classes.
        outputs: length of a latent.
    """
    return nn.Sequential(
        nn.Linear(classes, classes), nn.BatchNorm1d(classes), nn.ReLU(), nn.Linear(classes, outputs)
    )


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


def fully_connected(into: int, units: Sequence[int]) -> list[nn.Module]:
    """Fully connected layers with ReLU each.

    Args:
        into: length of the first one's input.
        units: of each layer.
    """
    layers: list[nn.Module] = []
    for before, out in pairwise([into, *units]):
        layers += [nn.Linear(before, out), nn.ReLU()]
    return layers


def pooled_relu() -> tuple[nn.Module, nn.Module]:
    """ReLU and 2x2 max pooling, pooling first: the same bits forward and back, a quarter of ReLU's work."""
    return nn.MaxPool2d(2), nn.ReLU()
