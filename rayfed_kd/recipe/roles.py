"""Marks for functions that a recipe may name: what a function is for, and that its author means it.

A recipe's `package.module:function` is imported and called. Only marked functions are: without a mark
`data.name: shutil:rmtree` would be a data source. Classes need no mark, they derive from a class of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_MARK = "__rayfed_kd_role__"
DATA_SOURCE = "data_source"
PARTITION_SCHEME = "partition_scheme"
MODEL_BUILDER = "model_builder"


def data_source(function: Function) -> Function:
    """Mark a function `(folder, *, options...) -> Source`, so that `data.name` may name it."""
    return _marked(function, DATA_SOURCE)


def partition_scheme(function: Function) -> Function:
    """Mark a function `(pool, clients, stream, *, options...)` that gives each client's samples.

    `partition.name` may name it.
    """
    return _marked(function, PARTITION_SCHEME)


def model_builder(function: Function) -> Function:
    """Mark a function `(shape, classes, *, options...) -> torch.nn.Module`.

    `model.name`, `client_models` and a method's generators and heads may name it.
    """
    return _marked(function, MODEL_BUILDER)


def has_role(candidate: object, role: str) -> bool:
    """Whether an object is a function that was marked for a role.

    Args:
        candidate: any object; nothing of it is called.
        role: DATA_SOURCE, PARTITION_SCHEME or MODEL_BUILDER.
    """
    # Functions alone: what any other object answers to `getattr` may be anything, as a mock's does.
    return isinstance(candidate, FunctionType) and getattr(candidate, _MARK, None) == role


def _marked(function: Function, role: str) -> Function:
    setattr(function, _MARK, role)
    return function
