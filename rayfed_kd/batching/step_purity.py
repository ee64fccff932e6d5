"""Which data of modules a client's step names: a guard before steps of a group take turns.

The steps of a group take turns, so what one of them leaves in a module's variable another may find there. A
loss in the form that batches has no captured variables, but Python lets every function read its module. So
the step's function is asked for all names that it mentions, and so is each function of the method's author
that it mentions: data that can change stop the group, and constants are compared before and after.

This is a guard for mistakes, not a proof: data behind an object that looks unchangeable pass it.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, cast

import torch
from pydantic import BaseModel

CONSTANTS = (type(None), bool, int, float, complex, str, bytes)
UNCHANGEABLE = (
    *(*CONSTANTS, torch.device, torch.dtype, torch.Size, enum.Enum, type, BuiltinFunctionType),
    *(logging.Logger, re.Pattern),  # what they hold changes no result
)
TRUSTED = {*sys.stdlib_module_names, "torch", "numpy", "pydantic", "rayfed_kd"}


class ModuleData(NamedTuple):
    """Module-level data that a step uses, itself or by functions that it mentions.

    Attributes:
        mutable: one that can change, with its type; empty if there is none.
        variables: the module and the name of each constant.
    """

    mutable: str
    variables: tuple[tuple[str, str], ...]

    @classmethod
    def used_by(cls, step: Callable[..., Any]) -> ModuleData:
        """What `step` uses; a bound method's class is looked at as well."""
        if isinstance(step, MethodType):
            return _used_by(step.__func__, cast(Any, type(step.__self__)))
        return _used_by(step, None)

    def constants(self) -> dict[str, Any]:
        """The constants' values now, by module and name."""
        return {
            f"{module}.{name}": getattr(sys.modules.get(module), name, None)
            for module, name in self.variables
        }


@cache
def _used_by(step: Any, owner: Any) -> ModuleData:
    variables: dict[tuple[str, str], None] = {}
    left: list[tuple[FunctionType, type | None]] = [(step, owner)] if isinstance(step, FunctionType) else []
    seen = set[tuple[FunctionType, type | None]]()
    while left:
        function, owner = left.pop()
        if (function, owner) in seen:
            continue
        seen.add((function, owner))
        for place, name, value in _mentioned(function, owner):
            left += _functions(value, None if place else owner)
            if not _unchangeable(value):
                return ModuleData(f"{'the global ' if place else ''}{name}, a {type(value).__name__}", ())
            if place and isinstance(value, CONSTANTS):
                variables[place, name] = None
    return ModuleData("", tuple(variables))


def _mentioned(function: FunctionType, owner: type | None) -> Iterator[tuple[str, str, Any]]:
    """(module, name, value) of all that a function's names may stand for; "" where it is no module's."""
    names, around = _names(function.__code__), function.__globals__
    for one in owner.__mro__ if owner is not None else ():
        for name in sorted(names & set(vars(one))):
            value = vars(one)[name]
            if _code_of(value) is not None or not _trusted(one.__module__):
                yield "", name, value
    if _trusted(function.__module__):
        return  # only of interest for the author's functions that it calls by `self`
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name != "__class__":  # of `super()`, whose functions are looked at above
            yield "", name, _content(cell)
    for name in sorted(names & set(around)):
        yield function.__module__, name, around[name]
        if isinstance(module := around[name], ModuleType) and not _trusted(module.__name__):
            inside = sorted(names & set(vars(module)))
            yield from ((module.__name__, own, vars(module)[own]) for own in inside)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that has no value yet
        return None


def _names(code: CodeType) -> set[str]:
    """The global and attribute names in a function and in those within it."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _functions(value: Any, owner: type | None) -> list[tuple[FunctionType, type | None]]:
    """The functions behind a value that are to be looked at, each with the class whose `self` it has."""
    if isinstance(value, type):
        if issubclass(value, BaseModel) or _trusted(value.__module__):
            return []
        # A dataclass' `__repr__` keeps a set of what it is printing.
        own = (_code_of(inner) for name, inner in vars(value).items() if name != "__repr__")
        return [(function, value) for function in own if function is not None]
    function = _code_of(value)
    if function is None or (owner is None and _trusted(function.__module__ or "")):
        return []
    return [(function, owner)]


def _code_of(value: Any) -> FunctionType | None:
    """The function behind a method, a property or a cache."""
    if isinstance(value, property):
        value = value.fget
    value = getattr(value, "__func__", getattr(value, "__wrapped__", value))
    return value if isinstance(value, FunctionType) else None


def _trusted(module: str) -> bool:
    return module.partition(".")[0] in TRUSTED


def _unchangeable(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_unchangeable, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return bool(value.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    if isinstance(value, BaseModel):
        return bool(value.model_config.get("frozen"))
    if isinstance(value, FunctionType | MethodType | ModuleType | property | staticmethod | classmethod):
        return True
    # Type variables, aliases such as Mapping[str, int], and functions in a cache.
    return isinstance(value, UNCHANGEABLE) or type(value).__module__ in ("typing", "types", "functools")
