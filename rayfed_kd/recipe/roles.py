"""Marks for functions that a recipe may name: what a function is for, and that its author means it.

A recipe's `package.module:function` is imported and called. Only marked functions are: without a mark
`data.name: shutil:rmtree` would be a data source. Classes need no mark, they derive from a class of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Literal, TypeVar, overload

Function = TypeVar("Function", bound=Callable[..., Any])

_MARK = "__rayfed_kd_role__"
_BETTER = "__rayfed_kd_better__"
DATA_SOURCE = "data_source"
PARTITION_SCHEME = "partition_scheme"
MODEL_BUILDER = "model_builder"
METRIC = "metric"
Better = Literal["larger", "smaller"]


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


@overload
def metric(function: Function) -> Function: ...


@overload
def metric(*, better: Better = "larger") -> Callable[[Function], Function]: ...


def metric(
    function: Function | None = None, *, better: Better = "larger"
) -> Function | Callable[[Function], Function]:
    """Mark a function `(logits, labels, *, options...) -> float`, so that `evaluation.metrics` may name it.

    It gets logits, [n, classes] float32, and labels, [n] int64, and returns a number or a tensor of one. It
    stands above the function as `@metric` or as `@metric(better="smaller")`.

    Args:
        better: which of two values is the better one.
    """

    def mark(marked: Function) -> Function:
        setattr(marked, _BETTER, better)
        return _marked(marked, METRIC)

    return mark if function is None else mark(function)


def better_of(function: Callable[..., Any]) -> Better:
    """Which of two values of a metric is the better one, as `metric` marked it."""
    better: Better = getattr(function, _BETTER)
    return better


def has_role(candidate: object, role: str) -> bool:
    """Whether an object is a function that was marked for a role.

    Args:
        candidate: any object; nothing of it is called.
        role: DATA_SOURCE, PARTITION_SCHEME, MODEL_BUILDER or METRIC.
    """
    # Functions alone: what any other object answers to `getattr` may be anything, as a mock's does.
    return isinstance(candidate, FunctionType) and getattr(candidate, _MARK, None) == role


def _marked(function: Function, role: str) -> Function:
    setattr(function, _MARK, role)
    return function
