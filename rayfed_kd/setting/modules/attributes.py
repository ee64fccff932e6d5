"""What a module holds in Python attributes, beside its tensors and submodules, as comparable values."""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rayfed_kd.errors import RecipeError

OF_TORCH = frozenset(vars(nn.Module()))  # what every module has
VALUES = (bool, int, float, complex, str, bytes)
FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType)
OPAQUE = (type, enum.Enum, *FUNCTIONS, ModuleType, torch.dtype, torch.device)
MOST_SHOWN = 3


class TensorContent(bytes):
    """The bits of a tensor. None counts as one, too: a cache that is not filled yet."""


@dataclass(frozen=True)
class Attributes:
    """The attributes of a module and of all within it.

    Attributes:
        values: by their names, as `rnn.hidden[0]`; containers and objects are looked into.
        leaves: the tensors that take a gradient and are no parameters of the module: name -> id.
    """

    values: Mapping[str, Any]
    leaves: Mapping[str, int]

    @classmethod
    def of(cls, module: nn.Module) -> Attributes:
        """A module's, now."""
        values, leaves, seen = dict[str, Any](), dict[str, int](), {id(part) for part in module.modules()}
        parameters = {id(parameter) for parameter in module.parameters()}
        for prefix, part in module.named_modules():
            for name, value in vars(part).items():
                if name not in OF_TORCH:
                    for path, leaf in _looked_into(f"{prefix}.{name}" if prefix else name, value, seen):
                        if isinstance(leaf, Tensor):
                            if leaf.requires_grad and leaf.is_leaf and id(leaf) not in parameters:
                                leaves[path] = id(leaf)
                            leaf = TensorContent(bits(leaf))  # noqa: PLW2901
                        values[path] = leaf
        return cls(values, leaves)

    def check_registered(self) -> None:
        """Refuse parameters that no optimiser would be told of.

        Raises: RecipeError
        """
        for name in self.leaves:
            raise RecipeError(
                f"{name} takes a gradient and is none of the module's parameters, so that it is never "
                "trained; expected an attribute, nn.ParameterList, nn.ModuleList or requires_grad=False"
            )

    def changed(self, later: Attributes) -> str:
        """The first name whose value is another later, whatever is in tensors; empty if there is none."""
        before, after = _without_content(self.values), _without_content(later.values)
        return next((name for name in before | after if before.get(name) != after.get(name)), "")

    def differing(self, later: Attributes) -> str:
        """The names of some that differ later; empty if none does."""
        every = [
            name
            for name in {**self.values, **later.values}
            if self.values.get(name) != later.values.get(name)
        ]
        # What torch keeps for itself, as lstm._flat_weights, only follows.
        return ", ".join(sorted(every, key=lambda name: "._" in name)[:MOST_SHOWN])


def bits(tensor: Tensor) -> bytes:
    """A tensor's type, shape and content, NaN included, in a comparable form."""
    about = f"{tensor.dtype} {tuple(tensor.shape)} ".encode()
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        return about
    plain = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    content: bytes = plain.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return about + content


def _looked_into(name: str, value: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """The plain values, tensors and generators' states in an attribute, by name."""
    if value is None:
        yield name, TensorContent()
    elif isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, VALUES):
        yield name, (type(value).__name__, repr(value))
    elif isinstance(value, OPAQUE) or id(value) in seen:
        yield name, type(value).__name__
    else:
        yield name, (type(value).__name__, _state(value))
        seen.add(id(value))
        for key, inner in _inner(value):
            yield from _looked_into(f"{name}{key}", inner, seen)


def _state(value: Any) -> Any:
    """The state of a generator of random numbers, or the content of an array."""
    if isinstance(value, torch.Generator):
        return bits(value.get_state())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state())
    if isinstance(value, random.Random):
        return repr(value.getstate())
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    plain = value if isinstance(value, set | frozenset) else ()
    return len(plain), sorted(repr(item) for item in plain if isinstance(item, VALUES))


def _inner(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", inner) for key, inner in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{place}]", inner) for place, inner in enumerate(value))
    yield from ((f".{key}", inner) for key, inner in getattr(value, "__dict__", {}).items())


def _without_content(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: "" if isinstance(value, TensorContent) else value for name, value in values.items()}
