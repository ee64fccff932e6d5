"""What may cross between server and clients: whether declarations, messages and replies are sound."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rayfed_kd.errors import MisuseError, RecipeError, kind_of, nearest, shown
from rayfed_kd.protocol.declaration import KINDS, Declaration, Part, Simulated, kinds
from rayfed_kd.protocol.dense import REAL, dense_fault
from rayfed_kd.protocol.message_codec import VECTORS
from rayfed_kd.protocol.messages import Package, is_finite
from rayfed_kd.protocol.method import RECIPE_MODEL, Architecture, Method
from rayfed_kd.protocol.state_packing import INT64

AVERAGED = "Averaged(KIND, by=NUMBER) in `up`"
# Members that a method had before its parts said so -> what says it now.
REPLACED = {
    **dict.fromkeys(("averages", "averages_only", "averaged_by", "sums_suffice"), AVERAGED),
    "slots": "Averaged(KIND, by=NUMBER, slots=ATTRIBUTE) in `up`",
    "aligned": "Unaligned(KIND) in `up`",
    "asks": "Answers(KIND) in `up`",
    "public_needed": "`public`, which may be a property",
    "trains_in_groups": "`group_training`",
}


def check_declared(name: str, method: Method[Any, Any], architectures: Mapping[str, Any]) -> None:
    """Check what a method declares to send, and what it calls its architectures.

    Args:
        name: the method's, for messages.
        method: with its options.
        architectures: as it gives them.
    Raises: RecipeError naming the part or the architecture, and what was expected.
    """
    refused = partial(RecipeError, path="method.name")
    for old, instead in REPLACED.items():
        if hasattr(method, old):
            raise refused(f"{name} has `{old}`, which is not read; expected {instead}: docs/extend/method.md")
    for key, one in architectures.items():
        if key == RECIPE_MODEL or not isinstance(one, Architecture):
            raise refused(
                f"{name} calls {kind_of(one)} its architecture {key!r}; expected an Architecture by a "
                f"name of its own, as {RECIPE_MODEL!r} is the recipe's"
            )
    for direction, parts, classes in (("down", method.down, Simulated), ("up", method.up, Part)):
        where = f"{name} declares {direction} = {shown(parts)}"
        if not isinstance(parts, Mapping):
            raise refused(f"{where}; expected part names and their kinds")
        for part, declared in parts.items():
            if not isinstance(part, str) or not part.isidentifier():
                raise refused(f"{where}: a part's name is an identifier")
            kind = declared.kind if isinstance(declared, classes) else declared
            if kind not in KINDS:
                known = f"{shown(kind)} is no kind; there are {', '.join(KINDS)}"
                raise refused(f"{where}: {known}", hint=nearest(str(kind), KINDS))


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
    kind_by_part = kinds(declared)
    for name, part in package.parts.items():
        _check_part(name, part, kind_by_part.get(name), (sent or {}).get(name))


def _check_part(name: str, part: Tensor, kind: str | None, answered: Tensor | None) -> None:
    if fault := dense_fault(part.detach()):
        raise MisuseError(f"part {name!r} is {fault[0]}, which cannot travel; expected {fault[1]}")
    if str(part.dtype).removeprefix("torch.") not in REAL:
        raise MisuseError(
            f"part {name!r} is {part.dtype}, which cannot travel; expected one of {', '.join(REAL)}"
        )
    if answered is None or kind not in VECTORS or part.numel() != answered.numel():
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
