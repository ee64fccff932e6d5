"""A loss taken apart: its code, and the values that it captured.

Two clients' losses are the same program if their code is the same object and what they captured is of the
same kinds: flat modules of one architecture, tensors of one shape, their own context, equal constants. Such
leaves may differ from client to client; all else must be equal.
"""

from __future__ import annotations

import dataclasses
import dis
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import lru_cache
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import ClientContext, Method, Package
from rayfed_kd.toolbox.local_training import LocalEpochs

New = Mapping[int, Any]
Apart = tuple[Hashable, Callable[[New], Any]]
ApartNamed = tuple[Hashable, Callable[[New], dict[Any, Any]]]
CONSTANTS = (type(None), bool, int, float, str, bytes, torch.device, torch.dtype)
DATA = (dict, list, set, bytearray, Tensor, np.ndarray, Iterator)
NAMED = (Method, type, ModuleType, BuiltinFunctionType)


class ApartError(Exception):
    """Why local epochs cannot be batched."""


class Program:
    """Local epochs, with their loss taken apart.

    Raises: ApartError if the loss captured what nobody can compare, or changes what it captured.

    Attributes:
        epochs: as asked for.
        leaves: what may differ from client to client, the student first.
        key: equal for those that can run as one.
        build: the loss from other leaves: place -> leaf.
    """

    def __init__(self, epochs: LocalEpochs) -> None:
        self.epochs = epochs
        self.leaves: list[Any] = []
        self._places: dict[int, int] = {}
        try:
            student, _ = self._apart(epochs.student, "student")
            loss, self.build = self._apart(epochs.loss, "loss")
        except RecursionError:
            raise ApartError("its loss refers to itself") from None
        if epochs.optimizer.module is not epochs.student:
            raise ApartError("its optimiser is not on the model that its epochs train")
        part = (epochs.optimizer.part.start, epochs.optimizer.part.stop)
        self.key: Hashable = (student, loss, epochs.optimizer.rule, part, epochs.optimizer.begun)

    def _apart(self, value: Any, name: str) -> Apart:
        """What must be equal, and how to put the value together from new leaves."""
        if isinstance(value, FlatModule | Tensor | ClientContext):
            return self._leaf(value, name)
        if isinstance(value, FunctionType | MethodType):
            return self._function(value, name)
        if isinstance(value, CONSTANTS):
            return (type(value), value), lambda new: value
        if isinstance(value, BaseModel):
            return (type(value), value.model_dump_json()), lambda new: value
        if isinstance(value, NAMED):
            return id(value), lambda new: value
        return self._container(value, name)

    def _leaf(self, value: FlatModule | Tensor | ClientContext, name: str) -> Apart:
        if isinstance(value, Tensor) and _inside(value, self.epochs.student.storage):
            raise ApartError(f"its loss uses {name}, which is part of the model that it trains")
        place = self._places.setdefault(id(value), len(self.leaves))
        if place == len(self.leaves):
            self.leaves.append(value)
        if isinstance(value, FlatModule):
            key: Hashable = (value.described, value.module.training)
        elif isinstance(value, Tensor):
            key = (value.shape, value.dtype, value.requires_grad)
        elif value is self.epochs.ctx:
            key = "context"
        else:
            raise ApartError(f"its loss uses {name}, another step's context")
        return (place, key), lambda new: new[place]

    def _function(self, value: FunctionType | MethodType, name: str) -> Apart:
        if isinstance(value, MethodType):
            key, owner = self._apart(value.__self__, name)
            bound = value.__func__
            return (bound, key), lambda new: MethodType(bound, owner(new))
        code, cells = value.__code__, value.__closure__ or ()
        if changed := _changed(code):
            raise ApartError(f"its loss changes {changed}, which is not its own")
        try:
            captured = {n: cell.cell_contents for n, cell in zip(code.co_freevars, cells, strict=True)}
        except ValueError:
            raise ApartError("its loss uses a variable that has no value yet") from None
        key, inner = self._named(captured, "")
        defaults, build_defaults = self._container(value.__defaults__ or (), name)
        keywords, build_keywords = self._named(value.__kwdefaults__ or {}, f"{name} ")

        def build(new: New) -> Any:
            closure = tuple(CellType(item) for item in inner(new).values())
            made = FunctionType(code, value.__globals__, value.__name__, build_defaults(new), closure)
            made.__kwdefaults__ = build_keywords(new)
            return made

        return (code, key, defaults, keywords), build

    def _container(self, value: Any, name: str) -> Apart:
        kind = type(value)
        if isinstance(value, Package):
            key, build = self._named(value.parts, f"{name}.")
            return (kind, key, *value.metadata.items()), lambda new: kind.of(build(new), value.metadata)
        if isinstance(value, Mapping):
            return self._named(value, f"{name}.")
        if dataclasses.is_dataclass(kind) and _frozen(kind):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            key, build = self._named(fields, f"{name}.")
            return (kind, key), lambda new: dataclasses.replace(value, **build(new))
        if isinstance(value, tuple | list):
            key, build = self._named(dict(enumerate(value)), f"{name}.")
            # A list comes as a tuple: what a loss appended to it would be lost.
            make = kind._make if hasattr(kind, "_make") else tuple
            return (kind, key), lambda new: make(build(new).values())
        raise ApartError(f"its loss uses {name}, a {kind.__name__}")

    def _named(
        self, values: Mapping[Any, Any], prefix: str
    ) -> tuple[Hashable, Callable[[New], dict[Any, Any]]]:
        inner = {name: self._apart(value, f"{prefix}{name}") for name, value in values.items()}
        key = tuple((name, key) for name, (key, _) in inner.items())
        return key, lambda new: {name: build(new) for name, (_, build) in inner.items()}


@lru_cache
def _changed(code: CodeType) -> str:
    """The outer variables that a function assigns to."""
    stores = (line.argval for line in dis.get_instructions(code) if line.opname == "STORE_DEREF")
    return ", ".join(sorted({name for name in stores if name in code.co_freevars}))


def outside(loss: Callable[..., Any]) -> str:
    """Which data of a module's a loss uses or changes, itself or by functions beside it; empty if none.

    It lies outside of a client's step: another client's may change it while the first one waits.
    """
    left: list[Any] = [loss]
    seen = set[CodeType]()
    while left:
        function = left.pop()
        if isinstance(function, MethodType):
            function = function.__func__
        if not isinstance(function, FunctionType) or function.__code__ in seen:
            continue
        code, around = function.__code__, function.__globals__
        seen.add(code)
        if changed := _global_names(code, "STORE_GLOBAL"):
            return f"the global {changed[0]}"
        for name in _global_names(code, "LOAD_GLOBAL"):
            found = around.get(name)  # None: a builtin
            if isinstance(found, DATA):
                return f"the global {name}, a {type(found).__name__}"
            if isinstance(found, FunctionType) and found.__globals__ is around:
                left.append(found)
        left += [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
    return ""


def _filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a variable that has no value yet
        return False


@lru_cache
def _global_names(code: CodeType, operation: str) -> tuple[str, ...]:
    """The globals that a function, or one within it, loads or stores."""
    names = {line.argval for line in dis.get_instructions(code) if line.opname == operation}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names |= set(_global_names(inner, operation))
    return tuple(sorted(names))


def _inside(tensor: Tensor, whole: Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def _frozen(kind: Any) -> bool:
    return bool(kind.__dataclass_params__.frozen)
