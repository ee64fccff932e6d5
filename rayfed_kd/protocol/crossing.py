"""What may cross between server and clients: whether messages and replies are sound."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rayfed_kd.errors import MisuseError
from rayfed_kd.protocol.declaration import Declaration, kinds
from rayfed_kd.protocol.dense import REAL, dense_fault
from rayfed_kd.protocol.message_codec import VECTORS
from rayfed_kd.protocol.messages import Package, is_finite
from rayfed_kd.protocol.state_packing import INT64


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
