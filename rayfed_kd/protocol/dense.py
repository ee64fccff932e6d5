"""Tensors and arrays that are just their numbers: what may lie in a state and cross, and how it is stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rayfed_kd.errors import kind_of

# What numpy and the files of checkpoints have as well. Tensors and arrays of other types are kept as bytes.
REAL = (
    *("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64"),
)
NUMPY = (*REAL, "complex64")
# Types of tensors that mean their numbers alone. A device whose kernels are Python has a type of its own.
TENSORS: list[type[torch.Tensor]] = [torch.Tensor]


def dense_fault(value: torch.Tensor | np.ndarray[Any, Any] | np.generic) -> tuple[str, str] | None:
    """Why a tensor or an array is not just its numbers: what it is, and what was expected; None: it is."""
    if isinstance(value, torch.Tensor):
        return _tensor_fault(value)
    if isinstance(value, np.ndarray) and type(value) is not np.ndarray:
        return kind_of(value), "an array of np.ndarray itself, as np.asarray(...) gives it"
    if value.dtype.kind not in "biufc" or value.dtype.char in "gG" or not value.dtype.isnative:
        return f"an array of {value.dtype.str!r}", "numbers of at most 64 bits in this machine's byte order"
    return None


def _tensor_fault(tensor: torch.Tensor) -> tuple[str, str] | None:
    dense = "a dense one with numbers of its own"
    faults = (
        (type(tensor) not in TENSORS, kind_of(tensor), "a torch.Tensor itself, as .detach() gives"),
        (tensor.is_nested, "a nested tensor", dense),
        (tensor.layout != torch.strided, f"a tensor of the layout {tensor.layout}", f"{dense}"),
        (tensor.is_quantized, f"a quantised tensor ({tensor.dtype})", f"{dense}, as .dequantize()"),
        (tensor.is_meta, "a tensor on the device meta", dense),
        (tensor.requires_grad, "a tensor that takes a gradient", "its numbers, as .detach() gives them"),
    )
    return next(((what, expected) for condition, what, expected in faults if condition), None)


def stored(value: Any) -> tuple[Any, *tuple[Any, ...]]:
    """What is kept of a dense tensor or array: it, or its bytes, with its type and its shape.

    Args:
        value: in which `dense_fault` finds nothing.
    """
    if not isinstance(value, torch.Tensor):
        array = np.asarray(value)
        if array.dtype.name in NUMPY:
            return (array,)
        return np.frombuffer(array.tobytes(), np.uint8), array.dtype.name, list(array.shape)
    tensor, name = value.resolve_conj().resolve_neg(), str(value.dtype).removeprefix("torch.")
    if name in NUMPY:
        return (tensor,)
    return tensor.contiguous().reshape(-1).view(torch.uint8), name, list(tensor.shape)
