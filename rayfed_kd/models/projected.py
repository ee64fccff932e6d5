"""Any classifier with features of a given length: what the architectures of a group have in common."""

from __future__ import annotations

import copy
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd

from rayfed_kd.errors import RecipeError
from rayfed_kd.models import CLASSIFIERS
from rayfed_kd.models.base import Classifier, Counts
from rayfed_kd.models.whole_modules import ChainClassifier, tried_head
from rayfed_kd.recipe.roles import model_builder
from rayfed_kd.recipe.sample_shapes import Shape, image_shape
from rayfed_kd.recipe.strict import Named
from rayfed_kd.recipe.torchvision_import import import_torchvision

STAGES = 4
RECIPES_DEFAULT = Named(name="lenet5")


@model_builder
def projected(
    shape: Shape,
    classes: int,
    *,
    base: Annotated[Named, Field(description="a model, as under `model`")] = RECIPES_DEFAULT,
    features: Annotated[
        int | None, Field(ge=1, description="length of the features; null: the base's own")
    ] = 512,
    form: Annotated[
        Literal["linear", "adaptive_pool"],
        Field(description="a linear layer, or HtFLlib's pooling, which repeats or averages values"),
    ] = "linear",
) -> Classifier:
    """A model whose features have a given length, and behind them one linear layer.

    The base's last layer is left out. Features of another length are projected; of this length they stay.
    Dropout and stochastic depth are off, for which training in groups could not draw. Maps of a single pixel
    in a batch of one sample take BatchNorm's running statistics.
    """
    bound = CLASSIFIERS.bound(base, "model.base")
    body, length = _headless(bound.found(shape, classes, **bound.arguments), shape, classes, base.name)
    _let_single_samples_through(body)
    for part in body.modules():
        if isinstance(part, _DropoutNd) or type(part).__name__ == "StochasticDepth":
            part.p = 0.0  # type: ignore[assignment]
        elif isinstance(part, nn.MultiheadAttention | nn.RNNBase):
            part.dropout = 0.0
    if features is not None and features != length:
        body.append(nn.Linear(length, features) if form == "linear" else nn.AdaptiveAvgPool1d(features))
        length = features
    return Classifier(body, nn.Linear(length, classes), length)


class SteadyBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm that takes its running statistics where a batch has a single value of each channel.

    torch refuses such a batch, which has no variance. A client's last batch may be one image, and the last
    maps of a ResNet on 32x32 images are one pixel.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """[batch, c, h, w], the same shape."""
        if self.training and self.running_mean is not None and maps.numel() == maps.shape[1]:
            return F.batch_norm(
                maps, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        return super().forward(maps)


def _let_single_samples_through(body: nn.Module) -> None:
    for part in body.modules():
        if type(part) is nn.BatchNorm2d:
            part.__class__ = SteadyBatchNorm2d  # the same layer, frozen, tied or hooked as it is


def _headless(module: nn.Module, shape: Shape, classes: int, name: str) -> tuple[nn.Sequential, int]:
    """A classifier's stages without the last, and the length of what they give.

    Raises: RecipeError if it does not end in a linear layer.
    """
    parts = ("forward", "features", "classify")
    if isinstance(module, ChainClassifier) or (
        isinstance(module, Classifier)
        and all(getattr(type(module), part) is getattr(Classifier, part) for part in parts)
    ):
        return nn.Sequential(*module.stages[:-1]), module.feature_size
    if next(module.parameters()).is_meta:
        # Built for its size alone: the layer that is listed last, as nothing can be tried.
        head = [path for path, part in module.named_modules() if isinstance(part, nn.Linear)][-1]
    else:
        head = tried_head(copy.deepcopy(module), shape, classes, name)
    if head is None:
        raise RecipeError(f"{name} does not end in a torch.nn.Linear, which is left out", path="model.base")
    length = module.get_submodule(head).in_features
    owner, _, last = head.rpartition(".")
    setattr(module.get_submodule(owner), last, nn.Identity())
    return nn.Sequential(module), int(length)  # type: ignore[arg-type]


@model_builder
def short_resnet(
    shape: Shape,
    classes: int,
    *,
    blocks: Annotated[
        Counts, Field(min_length=1, max_length=STAGES, description="basic blocks of each stage")
    ] = [1, 1, 1, 1],  # noqa: B006 -- read, never changed
) -> Classifier:
    """torchvision's ResNet of basic blocks with fewer of them, or fewer stages: 64, 128, 256, 512 channels.

    PFLlib's and HtFLlib's resnet4, 6, 8 and 10 have blocks [1] to [1, 1, 1, 1]. Here BatchNorm keeps running
    statistics. For 3x32x32 and 10 classes: 84,170, 314,954, 1,235,274 and 4,910,922 parameters.
    """
    image_shape(shape, "short_resnet", 8)
    import_torchvision()
    from torchvision.models.resnet import BasicBlock, ResNet

    every = [*blocks, *[1] * (STAGES - len(blocks))]
    resnet = ResNet(BasicBlock, every, num_classes=classes)
    if shape[0] != resnet.conv1.in_channels:
        resnet.conv1 = nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False)
    stages = [resnet.layer1, resnet.layer2, resnet.layer3, resnet.layer4][: len(blocks)]
    body = nn.Sequential(
        nn.Sequential(resnet.conv1, resnet.bn1, resnet.relu),
        resnet.maxpool,
        *(block for stage in stages for block in stage),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    length = 64 * 2 ** (len(blocks) - 1)
    return Classifier(body, nn.Linear(length, classes), length)
