"""The optimisers of `torch.optim` that a recipe may name, and their options as their constructors have them.

A client's parameters are one flat vector here. Optimisers that treat every coordinate by itself do on it what
they do on a list of layers. Adafactor and Muon look at a layer's shape, LBFGS at the loss, SparseAdam at
sparse gradients: they are none of these.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from numbers import Real
from typing import Any, Literal, get_args

from rayfed_kd.errors import nearest, shown

OptimizerName = Literal[
    "sgd", "adam", "adadelta", "adagrad", "adamax", "adamw", "asgd", "nadam", "radam", "rmsprop", "rprop"
]
OPTIMIZERS: tuple[str, ...] = get_args(OptimizerName)
# How torch computes an update, and its sign; what it computes from are the other parameters.
NO_OPTIONS = ("params", "foreach", "fused", "capturable", "differentiable", "maximize")


@cache
def torch_class(name: str) -> Any:
    """The class of an optimiser: the one of `torch.optim` whose name in small letters is this.

    Args:
        name: one of OPTIMIZERS.
    """
    import torch  # a recipe of SGD or Adam is checked without torch

    classes = (kind for kind in vars(torch.optim).values() if isinstance(kind, type))
    return next(kind for kind in classes if kind.__name__.lower() == name)


@cache
def defaults(name: str) -> Mapping[str, Any]:
    """Option -> its default in torch; tuples are lists, as a recipe has them.

    Args:
        name: one of OPTIMIZERS.
    """
    parameters = inspect.signature(torch_class(name)).parameters.items()
    return {
        option: list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
        for option, parameter in parameters
        if option not in NO_OPTIONS
    }


class OptionError(ValueError):
    """An option that an optimiser cannot have: which, and the nearest that it has."""

    def __init__(self, message: str, option: str = "", near: str | None = None) -> None:
        super().__init__(message)
        self.option, self.near = option, near


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Checks options against the constructor: their names, their types, and torch's own ranges.

    Args:
        name: one of OPTIMIZERS.
        options: as the recipe has them.

    Raises: OptionError saying what is wrong.
    """
    known = defaults(name)
    for option, value in options.items():
        if option not in known:
            near = nearest(option, known)
            listed = "" if near else f" There are: {', '.join(sorted(known))}."
            raise OptionError(f"{shown(option)} is no option of {name}.{listed}", option, near)
        if not _like(value, known[option]):
            raise OptionError(f"{option} = {shown(value)}: expected {_kind(known[option])}")
    import torch

    try:
        torch_class(name)([torch.zeros(1)], **arguments(options))
    except (ValueError, RuntimeError) as error:
        raise OptionError(f"{name}: {' '.join(str(error).split())}") from None


def arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as the constructor takes them: a recipe has lists where torch has pairs."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


def _like(value: Any, default: Any) -> bool:
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, list):
        same_length = isinstance(value, list) and len(value) == len(default)
        return same_length and all(_like(item, 0.0) for item in value)
    return isinstance(value, Real) and not isinstance(value, bool)


def _kind(default: Any) -> str:
    if isinstance(default, bool):
        return "true or false"
    return f"a list of {len(default)} numbers" if isinstance(default, list) else "a number"
