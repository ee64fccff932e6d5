"""Checks of the modules that a recipe's models and generators make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from rayfed_kd.data.dataset import check_size
from rayfed_kd.errors import RecipeError
from rayfed_kd.models.base import Classifier
from rayfed_kd.models.whole_modules import HEAD, tried_head

FLOAT_BYTES = 4


def check_module_size(make: Callable[[], Any], path: str) -> None:
    """Refuse a module that this machine's memory cannot hold, before memory is taken.

    It is made without memory for that; a module that cannot be made so is not measured.

    Args:
        make: makes the module.
        path: the recipe's path to it, for the message.

    Raises: RecipeError with the number of parameters.
    """
    # Layers draw initial values: the generator must be afterwards as it was.
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        try:
            module = make()
        except Exception:
            return
    if isinstance(module, nn.Module):
        check_size(f"{path}: parameters", [sum(p.numel() for p in module.parameters())], FLOAT_BYTES)


def checked_module(module: Any, path: str) -> nn.Module:
    """The module, if it is one.

    Args:
        module: what a recipe's object made.
        path: the recipe's path to it, for the message.

    Raises: RecipeError if it is none.
    """
    if not isinstance(module, nn.Module):
        raise RecipeError(f"{path}: it made a {type(module).__name__}, expected a torch.nn.Module")
    return module


class Trials:
    """Classifiers that were run once on blank samples, by where the recipe names them."""

    def __init__(self) -> None:
        self._heads: dict[str, str | None] = {}

    def check(self, module: nn.Module, path: str, shape: tuple[int, ...], classes: int, name: str) -> None:
        """Try an architecture when its first module is made; every plain module learns its last linear layer.

        Raises: RecipeError if it does not take the samples, or does not give logits.
        """
        if path not in self._heads:
            self._heads[path] = tried_head(module, shape, classes, name)
        if not isinstance(module, Classifier) and self._heads[path] is not None:
            setattr(module, HEAD, self._heads[path])
