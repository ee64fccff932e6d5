"""What may cross between server and clients: whether declarations, messages and replies are sound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rayfed_kd.errors import MisuseError, RecipeError, kind_of, nearest, shown
from rayfed_kd.protocol.dense import REAL, dense_fault
from rayfed_kd.protocol.message_codec import VECTORS
from rayfed_kd.protocol.messages import KINDS, Declaration, Package, Simulated, is_finite
from rayfed_kd.protocol.method import RECIPE_MODEL, Architecture
from rayfed_kd.protocol.state_packing import INT64


def check_declared(method: str, declared: Mapping[str, Any], architectures: Mapping[str, Any]) -> None:
    """Check what a method declares to send, and what it calls its architectures.

    Args:
        method: its name, for messages.
        declared: its `down` and `up` by direction.
        architectures: as it gives them.
    Raises: RecipeError naming the part or the architecture, and what was expected.
    """
    for name, one in architectures.items():
        if name == RECIPE_MODEL or not isinstance(one, Architecture):
            raise RecipeError(
                f"{method} calls {kind_of(one)} its architecture {name!r}; expected an Architecture by a "
                f"name of its own, as {RECIPE_MODEL!r} is the recipe's",
                path="method.name",
            )
    for direction, parts in declared.items():
        where = f"{method} declares {direction} = {shown(parts)}"
        if not isinstance(parts, Mapping):
            raise RecipeError(f"{where}; expected part names and their kinds", path="method.name")
        for name, declared_kind in parts.items():
            if not isinstance(name, str) or not name.isidentifier():
                raise RecipeError(f"{where}: a part's name is an identifier", path="method.name")
            kind = declared_kind.kind if isinstance(declared_kind, Simulated) else declared_kind
            if kind not in KINDS:
                raise RecipeError(
                    f"{where}: {shown(kind)} is no kind; there are {', '.join(KINDS)}",
                    path="method.name",
                    hint=nearest(str(kind), KINDS),
                )


def check_package(package: Package, declared: Declaration, sent: Mapping[str, Tensor] | None = None) -> None:
    """Check that a message's or reply's parts and numbers can travel, and mean the same where they arrive.

    A vector that answers one of the same name has floats in the same shape. One that is too long or short is
    a bad reply, as one with a NaN, and not looked at here.

    Args:
        package: what is about to cross.
        declared: part -> kind, as the method declares them for this direction.
        sent: the parts that a reply answers.
    Raises: MisuseError naming the part, what it is, and what was expected.
    """
    for name, number in package.metadata.items():
        if name in declared:
            raise MisuseError(
                f"{name!r} is the number {number}; expected a tensor, as it is declared as a part"
            )
        if isinstance(number, int) and is_finite(number) and not -INT64 <= number < INT64:
            raise MisuseError(f"the number {name!r} has more than 64 bits; expected no more, as 64 are sent")
    for name, part in package.parts.items():
        _check_part(name, part, declared, (sent or {}).get(name))


def _check_part(name: str, part: Tensor, declared: Declaration, answered: Tensor | None) -> None:
    if fault := dense_fault(part.detach()):
        raise MisuseError(f"part {name!r} is {fault[0]}, which cannot travel; expected {fault[1]}")
    if str(part.dtype).removeprefix("torch.") not in REAL:
        raise MisuseError(
            f"part {name!r} is {part.dtype}, which cannot travel; expected one of {', '.join(REAL)}"
        )
    if answered is None or declared.get(name) not in VECTORS or part.numel() != answered.numel():
        return
    if not part.is_floating_point() or part.shape != answered.shape:
        raise MisuseError(
            f"part {name!r} is {_described(part)}, and answers {_described(answered)}; expected floats in "
            "that shape"
        )


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def same_bits(tensor: Tensor, copy: Tensor) -> bool:
    """Whether a tensor is still what its copy was made of; a NaN equals itself."""
    if tensor.dtype != copy.dtype or tensor.shape != copy.shape or tensor.requires_grad:
        return False
    # By the size of an element. Parts are real numbers, so there is no larger one.
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return torch.equal(tensor.view(bits), copy.view(bits))
