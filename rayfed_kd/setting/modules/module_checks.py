"""Checks of the modules that a recipe's models and generators make."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rayfed_kd.data.dataset import check_size
from rayfed_kd.errors import RecipeError, kind_of
from rayfed_kd.models.whole_modules import tried_head
from rayfed_kd.recipe.sample_shapes import RowShape, Shape, TextShape
from rayfed_kd.recipe.seeds import torch_stream
from rayfed_kd.setting.modules.training_trial import TRAINED, TrainingTrial

FLOAT_BYTES = 4
MOST_NUMBERS = 64 * 3 * 32 * 32  # of a trial batch: 64 small images, and two of 224x224, for they take long


def check_module_size(make: Callable[[], Any], path: str) -> None:
    """Refuse a module that this machine's memory cannot hold, before memory is taken.

    It is made without memory for that; a module that cannot be made so is not measured.

    Args:
        make: makes the module.
        path: the recipe's path to it, for the message.

    Raises: RecipeError with the number of parameters.
    """
    # Layers draw initial values: the generator must be afterwards as it was. A builder that loads weights
    # is warned that they are not copied here.
    quiet = warnings.catch_warnings(action="ignore")
    with torch.random.fork_rng(devices=[]), torch.device("meta"), quiet:
        try:
            module = make()
        except Exception:
            return
    if isinstance(module, nn.Module):
        count = sum(p.numel() for p in module.parameters() if not is_lazy(p))
        check_size(f"{path}: parameters", [count], FLOAT_BYTES)


def checked_module(module: Any, path: str) -> nn.Module:
    """The module, if it is one.

    Args:
        module: what a recipe's object made.
        path: what made it, for the message.

    Raises: RecipeError if it is none.
    """
    if not isinstance(module, nn.Module):
        raise RecipeError(f"{path} made {kind_of(module)}, expected a torch.nn.Module")
    return module


def trial(
    make: Callable[[], nn.Module],
    kind: Literal["classifier", "generator", "head"],
    shape: Shape,
    classes: int,
    name: str,
    batch_size: int,
) -> TrainingTrial:
    """The trial of an architecture.

    Args:
        make: builds a module.
        kind: of the architecture.
        shape: of one sample; a generator's samples are noise.
        classes: number of classes.
        name: as the recipe has it, for messages.
        batch_size: on which a classifier is trained, or on fewer of large samples.
    """
    if kind == "classifier":
        # As large as those of local training, as a module may do something else with few samples.
        trained = max(2, min(batch_size, MOST_NUMBERS // max(1, torch.Size(shape).numel())))
        return TrainingTrial(
            make,
            lambda number: (drawn_samples(shape, number, trained if number in TRAINED else 2),),
            classes,
            name,
            lambda module: tried_head(module, shape, classes, name),
        )
    if kind == "head":
        return TrainingTrial(make, lambda number: (drawn_samples(shape, number),), None, name)
    with torch.random.fork_rng(devices=[]):
        module: Any = make()
    labels = (torch.arange(2) % classes,) if getattr(module, "conditional", False) else ()
    latent = (int(getattr(module, "latent", 1)),)
    return TrainingTrial(make, lambda number: (drawn_samples(latent, number), *labels), None, name)


def drawn_samples(shape: Shape, number: int, count: int = 2) -> Tensor:
    """Samples drawn from a stream of this number: normal numbers, and codes or tokens of any kind."""
    stream = torch_stream(number, "trial samples")
    if isinstance(shape, TextShape):
        return torch.randint(shape.vocabulary, (count, *shape), generator=stream)
    drawn = torch.randn(count, *shape, generator=stream)
    for place, codes in enumerate(shape.categories if isinstance(shape, RowShape) else ()):
        drawn[:, shape.numbers + place] = torch.randint(codes, (count,), generator=stream).float()  # type: ignore[attr-defined]
    return drawn
