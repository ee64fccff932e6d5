"""The classifiers of `torchvision.models` by name, as `torchvision:resnet18`. Nothing is downloaded.

The module's attributes are the builders: `resnet18` is made when a recipe names it.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from rayfed_kd.errors import RecipeError, shortened
from rayfed_kd.files.folders import path_fault
from rayfed_kd.models.whole_modules import as_chain, tried_head
from rayfed_kd.recipe.roles import model_builder
from rayfed_kd.recipe.sample_shapes import Shape
from rayfed_kd.recipe.torchvision_import import UNUSABLE, import_torchvision, unusable


def __getattr__(name: str) -> Callable[..., nn.Module]:
    """The builder of a model of torchvision's.

    Raises: AttributeError if it has none of this name.
    """
    if name.startswith("_") or name not in _names():
        raise AttributeError(f"torchvision.models has no {name}")
    return _builder(name)


def __dir__() -> list[str]:
    return _names()


def _names() -> list[str]:
    models = _models()
    return list(models.list_models(module=models))


def _models() -> Any:
    """torchvision.models.

    Raises: RecipeError if torchvision cannot be imported.
    """
    try:
        import_torchvision()
        return importlib.import_module("torchvision.models")
    except UNUSABLE as error:
        raise RecipeError(f"needs torchvision, which {unusable(error)}", path="model.name") from None


def _builder(name: str) -> Callable[..., nn.Module]:
    @model_builder
    def build(
        shape: Shape,
        classes: int,
        *,
        weights: Annotated[
            str | None, Field(min_length=1, description="a file of weights (.pth, .safetensors); null: drawn")
        ] = None,
    ) -> nn.Module:
        """A model of torchvision's for these classes and channels."""
        if len(shape) != 3:
            raise RecipeError(f"torchvision:{name} takes images (channels, height, width), not {shape}")
        further: dict[str, Any] = (
            {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}
        )
        if name.startswith("vit_"):
            further["image_size"] = shape[1]  # positions are learned for one size
        module: nn.Module = _models().get_model(name, weights=None, num_classes=classes, **further)
        _take_channels(module, shape[0])
        if weights is not None:
            _load(module, weights, tried_head(copy.deepcopy(module), shape, classes, f"torchvision:{name}"))
        return as_chain(module, shape)

    build.__name__ = build.__qualname__ = name
    return build


def _take_channels(module: nn.Module, channels: int) -> None:
    """Gives the first convolution as many input channels as the images have."""
    for owner in module.modules():
        for child_name, child in owner.named_children():
            if isinstance(child, nn.Conv2d):
                if child.in_channels != channels:
                    like: Any = child  # whose sizes mypy knows as tuples of any length
                    sizes = {name: getattr(like, name) for name in ("kernel_size", "stride", "padding")}
                    other = nn.Conv2d(channels, like.out_channels, bias=like.bias is not None, **sizes)
                    setattr(owner, child_name, other)
                return


def _load(module: nn.Module, file: str, head: str | None) -> None:
    """Weights of a file: all must be there; the last layer is left as drawn if it is of other classes.

    Raises: RecipeError naming the file and what does not fit.
    """
    where = f"model.weights = {file!r}"
    # `rayfed-kd export` names a chain's tensors as those of its `whole`.
    stored = {name.removeprefix("whole."): tensor for name, tensor in _read(file, where).items()}
    state = module.state_dict()
    for name, tensor in state.items():
        if name.endswith("num_batches_tracked") and name not in stored:
            stored[name] = tensor  # old files lack the counters
        if name not in stored:
            raise RecipeError(f"{where}: it has no {name}; expected the weights of this model")
        theirs = stored[name]
        if theirs.shape == tensor.shape:
            continue
        if head is not None and name in (f"{head}.weight", f"{head}.bias"):
            stored[name] = tensor
        elif theirs.dim() == 4 and tensor.shape[1] == 1 and theirs.shape[2:] == tensor.shape[2:]:
            stored[name] = theirs.sum(dim=1, keepdim=True)  # the same for a grey image
        else:
            raise RecipeError(f"{where}: {name} is {tuple(theirs.shape)}, expected {tuple(tensor.shape)}")
    spare = (f"{head}.", "AuxLogits.", "aux1.", "aux2.")  # heads that only training has
    if foreign := [name for name in stored if name not in state and not name.startswith(spare)]:
        raise RecipeError(f"{where}: this model has no {foreign[0]}; expected the weights of this model")
    module.load_state_dict({name: stored[name] for name in state})


def _read(file: str, where: str) -> dict[str, Tensor]:
    if fault := path_fault(file):
        raise RecipeError(f"{where}: {fault}")
    if not Path(file).is_file():
        raise RecipeError(f"{where}: no such file; nothing is downloaded")
    try:
        if file.endswith(".safetensors"):
            from safetensors.torch import load_file

            return load_file(file)
        stored: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # those of pickle, zip and safetensors have no common base
        raise RecipeError(f"{where}: not readable ({shortened(' '.join(str(error).split()), 200)})") from None
    if not isinstance(stored, dict) or not all(isinstance(value, Tensor) for value in stored.values()):
        raise RecipeError(f"{where}: expected a state_dict, tensors by name")
    return dict(stored)
