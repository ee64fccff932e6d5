"""Modules that were not written for us: their features, and stages where they are a plain chain."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rayfed_kd.errors import RecipeError
from rayfed_kd.models.base import Classifier, blank, trial
from rayfed_kd.recipe.registry import blame
from rayfed_kd.recipe.sample_shapes import Shape, shown_sides

# The attribute that names a module's last linear layer, whose input are its features.
HEAD = "rayfed_kd_head"


class _Chain:
    """Stages that lie in another module; no list, so that nothing takes them for plain data."""

    def __init__(self, stages: Sequence[nn.Module]) -> None:
        self.stages = tuple(stages)


class ChainClassifier(Classifier):
    """A whole module whose parts, run one after the other, compute what it computes.

    Args:
        module: the whole module; its parameters keep their order.
        body: its stages, glue between them included.
        head: its last layer.
    """

    def __init__(self, module: nn.Module, body: Sequence[nn.Module], head: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.whole, self.feature_size = module, head.in_features
        self._chain = _Chain([*body, head])

    def features(self, images: Tensor) -> Tensor:
        """The input of the last layer, [batch, feature_size]."""
        for stage in self.stages[:-1]:
            images = stage(images)
        return images

    def classify(self, features: Tensor) -> Tensor:
        """Logits, [batch, classes]."""
        logits: Tensor = self.stages[-1](features)
        return logits

    def forward(self, images: Tensor) -> Tensor:
        """Logits, [batch, classes]: those of the whole, however it was taken apart."""
        logits: Tensor = self.whole(images)
        return logits

    @property
    def stages(self) -> list[nn.Module]:
        """The chain's modules, the head last."""
        return list(self._chain.stages)


GLUE: tuple[tuple[type[nn.Module], ...], ...] = (
    (nn.Flatten,),
    (nn.AdaptiveAvgPool2d, nn.Flatten),
    (nn.ReLU, nn.AdaptiveAvgPool2d, nn.Flatten),  # DenseNet
)


def as_chain(module: nn.Module, shape: Shape) -> nn.Module:
    """A module with stages, if its parts in their order compute what it computes; else as it is.

    Args:
        module: with a linear layer at its end.
        shape: of one input.
    """
    if next(module.parameters()).is_meta:
        return module  # without numbers nothing can be compared
    *first, last = module.children()
    ends = list(_units(last))
    if not first or not isinstance(ends[-1], nn.Linear):
        return module
    body = [unit for part in first for unit in _units(part)]
    # Numbers that differ from place to place, and draw nothing from the run's streams.
    images = torch.linspace(-1, 1, 2 * int(torch.Size(shape).numel())).view(2, *shape)
    for glue in GLUE:
        between = [kind(1) if kind is nn.AdaptiveAvgPool2d else kind() for kind in glue]
        chain = ChainClassifier(module, [*body, *between, *ends[:-1]], ends[-1])
        with trial(copy.deepcopy(chain)) as tried:
            try:
                same = torch.equal(tried.classify(tried.features(images)), tried(images))
            except Exception:
                continue  # shapes that do not follow one another: no chain of this form
            if same:
                return chain
    return module


def _units(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential:
        for part in module:
            yield from _units(part)
    else:
        yield module


def tried_head(module: nn.Module, shape: Shape, classes: int, name: str) -> str | None:
    """Run a classifier once on two blank samples.

    Args:
        module: computes in eval mode, as often as it takes to say what fits.
        shape: of one sample.
        classes: number of classes.
        name: as the recipe has it, for the message.

    Returns: the name of the last linear layer, if the module's output is that layer's.
    Raises: RecipeError if the module does not take the samples, or gives something else than logits.
    """
    sides = shown_sides(shape)
    with trial(module) as tried:
        try:
            logits, head = with_head(tried, blank(shape, 2))
        except Exception as error:
            raise RecipeError(
                f"{name} does not take samples of {sides}: {blame(error)}; expected a model for them, or "
                "images of another size, as data.size makes an image_folder's"
            ) from error
    check_outputs(logits, 2, classes, name, f"of {sides}")
    return head


def check_outputs(outputs: Any, samples: int, classes: int | None, name: str, which: str) -> None:
    """Refuse what is no tensor, and where there are classes, no logits, [samples, classes].

    Args:
        name, which: who gives it, and of which samples, for the message.
    Raises: RecipeError
    """
    is_tensor = isinstance(outputs, Tensor)
    if not is_tensor or (classes is not None and tuple(outputs.shape) != (samples, classes)):
        shape = tuple(outputs.shape) if is_tensor else type(outputs).__name__
        wanted = "a tensor" if classes is None else f"logits {(samples, classes)} alone"
        raise RecipeError(f"{name} gives {shape} of {samples} samples {which}; expected {wanted}")
    # Losses and metrics take the softmax themselves. In bfloat16 a sum of 1 is off by less than a hundredth.
    if classes is not None and outputs.min() >= 0 and ((outputs.sum(1) - 1).abs() < 0.01).all():
        raise RecipeError(f"{name} gives probabilities of {samples} samples {which}; expected logits")


def with_head(module: nn.Module, inputs: Tensor) -> tuple[Any, str | None]:
    """A module's output, and the name of the linear layer that gave it, if one did."""
    outputs: dict[str, tuple[Tensor, int]] = {}
    with ExitStack() as hooks:
        for path, layer in module.named_modules():
            if isinstance(layer, nn.Linear):
                hooks.enter_context(layer.register_forward_hook(partial(_note, outputs, path)))
        logits = module(inputs)
    # Not what changes in place behind the layer, as `logits *= scale`: its version is another.
    heads = (n for n, (output, then) in outputs.items() if output is logits and output._version == then)
    return logits, next(heads, None)


def _note(outputs: dict[str, tuple[Tensor, int]], path: str, _: nn.Module, __: Any, output: Tensor) -> None:
    outputs[path] = output, output._version


def head_of(module: nn.Module) -> nn.Module:
    """The last linear layer of a module that is no `Classifier`.

    Raises: RecipeError if there is none.
    """
    if not hasattr(module, HEAD):
        raise RecipeError(
            f"a {type(module).__name__} has no features: its output is not that of a torch.nn.Linear; "
            "expected a model that ends in one, or a rayfed_kd.models.base.Classifier",
            path="model.name",
        )
    return module.get_submodule(str(getattr(module, HEAD)))


def classify(module: nn.Module, features: Tensor) -> Tensor:
    """A classifier's logits, [batch, classes], from its features."""
    if isinstance(module, Classifier):
        return module.classify(features)
    return head_of(module)(features)  # type: ignore[no-any-return]


def features_of(module: nn.Module, inputs: Tensor) -> Tensor:
    """A Classifier's own features, or the input of a module's last linear layer; gradients pass.

    What a module that is no Classifier calls `features` may be anything, as feature maps.
    """
    if isinstance(module, Classifier):
        return module.features(inputs)
    inside: list[Tensor] = []
    with head_of(module).register_forward_pre_hook(lambda _, arguments: inside.append(arguments[0])):
        module(inputs)
    return inside[-1]
