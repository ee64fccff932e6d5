"""A second device without a GPU: it computes on the CPU, refuses to mix with it, and counts what is copied.

`install()` gives torch a device `other`, for good: it is for a process of its own. A tensor on it holds a CPU
tensor, on which every operation is done, so results have the CPU's bits. As on a GPU,

- an operation on tensors of both devices is an error, unless one of them is a single number;
- a tensor reaches the other device by a copy only; `COPIES` has each with its direction and size;
- an operation for which torch has no kernel on CUDA that repeats bit for bit is an error, as it is there with
  `deterministic: true`;
- BatchNorm of a tensor that does not begin at a multiple of 16 bytes is an error, as cuDNN's is where images
  lie channels-last.

It is no test of kernels, of memory or of streams. `torch.func.vmap` does not know it, so no group of clients
is trained as one program on it.

torch 2.13 lets Python code stand for a device's kernels (`torch.utils.backend_registration`); the interface
is experimental. Three things do not reach that code, and are put in its place by `install`: `torch.tensor`
and other functions that make tensors in C++, generators, and inference mode, for which no such tensor can be
made.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

ROOT = Path(__file__).parents[2]
NAME = "other"
# What these make is new: it lies on the device from the start. `torch.tensor` copies numbers of Python to it.
MADE_THERE = (torch.arange, torch.randperm, torch.linspace, torch.full, torch.eye)
COPIED_THERE = (torch.tensor, torch.as_tensor)
# Operations behind the functions that `torch.use_deterministic_algorithms` lists as errors on CUDA.
REFUSED = {
    *("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward", "_adaptive_avg_pool2d_backward"),
    *("_adaptive_avg_pool3d_backward", "avg_pool3d_backward", "max_pool3d_with_indices_backward"),
    *("fractional_max_pool2d_backward", "fractional_max_pool3d_backward", "max_unpool2d", "max_unpool3d"),
    *(f"upsample_{kind}_backward" for kind in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d")),
    *(f"{kind}_pad{sides}d_backward" for kind in ("reflection", "replication") for sides in (1, 2, 3)),
    *("_ctc_loss_backward", "grid_sampler_2d_backward", "grid_sampler_3d_backward", "nll_loss2d_forward"),
    *("put_", "histc", "kthvalue", "median.dim"),
}
REFUSED_FLOATS = ("cumsum", "cumprod")


class Copy(NamedTuple):
    """A copy from one device to the other.

    Attributes:
        to: `other` or `cpu`.
        size: elements.
        place: file and function of the project's code that asked for it.
    """

    to: str
    size: int
    place: str


COPIES: list[Copy] = []
CPUGenerator = torch.Generator


class OnOther(torch.Tensor):
    """A tensor on the device.

    Attributes:
        raw: the CPU tensor with its numbers.
    """

    raw: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> OnOther:
        strides, offset = raw.stride(), raw.storage_offset()
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, raw.shape, strides=strides, storage_offset=offset, dtype=raw.dtype, device=f"{NAME}:0"
        )
        tensor.raw = raw
        return tensor

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(operation, args, kwargs or {})

    @property
    def data(self) -> torch.Tensor:
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, value: OnOther) -> None:
        torch.Tensor.data.__set__(self, value)
        self.raw = value.raw

    def tolist(self) -> Any:
        return self.cpu().tolist()


class OtherGenerator(CPUGenerator):
    """The device's generator; it draws what the CPU's draws."""

    device = property(lambda self: torch.device(NAME))


class _AnyGenerator(CPUGenerator):
    """In the place of `torch.Generator`: a generator of the device that is named."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:
        return OtherGenerator() if _is_other(device) else CPUGenerator(device)


class _Factories(TorchFunctionMode):
    """Functions that make tensors in C++, where no kernel in Python is found."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        there = _is_other(kwargs.get("device"))
        if there and func in MADE_THERE:
            return OnOther(func(*args, **{**kwargs, "device": "cpu"}))
        if there and func in COPIED_THERE:
            return func(*args, **{**kwargs, "device": "cpu"}).to(NAME)
        return func(*args, **kwargs)


def install() -> None:
    """Give torch the device, and put what does not reach it in its place. Once in a process, for good."""
    from rayfed_kd.protocol.dense import TENSORS

    _setup_privateuseone_for_python_backend(NAME)
    TENSORS.append(OnOther)
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda operation, *args, **kwargs: _computed(operation, args, kwargs), "PrivateUse1")
    _INSTALLED.append(library)  # it ends with its object
    _Factories().__enter__()
    torch.inference_mode = torch.no_grad
    torch.Generator = _AnyGenerator


_INSTALLED: list[Any] = []


def _is_other(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _computed(operation: Any, args: Any, kwargs: Any) -> Any:
    """An operation's result, computed on the CPU."""
    name = str(operation)
    if name.startswith("aten._copy_from"):
        source, target = args[:2]
        return _copied(source, target)
    if name.startswith("aten.copy_."):
        target, source = args[:2]
        return _copied(source, target)
    if name.startswith("aten._to_copy"):
        return _converted(operation, args[0], kwargs)
    if _is_refused(name.removeprefix("aten.").removesuffix(".default"), args, kwargs):
        raise RuntimeError(f"{operation}: torch has no deterministic kernel for it on a GPU")
    inputs = pytree.tree_leaves((args, kwargs))
    for one in inputs:
        if isinstance(one, torch.Tensor) and not isinstance(one, OnOther) and one.dim() > 0:
            raise RuntimeError(f"{operation}: a tensor on {one.device}, {tuple(one.shape)}, beside {NAME}'s")
    raw_args, raw_kwargs = pytree.tree_map_only(OnOther, lambda one: one.raw, (args, kwargs))
    if "batch_norm" in name and any(
        one.raw.storage_offset() % 4 for one in inputs if isinstance(one, OnOther)
    ):
        raise RuntimeError(f"{operation}: misaligned address")
    if "device" in raw_kwargs:
        raw_kwargs["device"] = "cpu"
    result = operation(*raw_args, **raw_kwargs)
    # An operation in place gives the tensor that it got, not another one with the same numbers.
    known = {id(one.raw): one for one in inputs if isinstance(one, OnOther)}
    return pytree.tree_map_only(
        torch.Tensor, lambda one: known[id(one)] if id(one) in known else OnOther(one), result
    )


def _is_refused(name: str, args: Any, kwargs: Any) -> bool:
    """Whether a GPU with deterministic kernels alone has no kernel for this."""
    if name.partition(".")[0] in REFUSED_FLOATS:
        return bool(args[0].is_floating_point())
    if name == "bincount":
        return (args[1] if len(args) > 1 else kwargs.get("weights")) is not None
    return name in REFUSED


def _copied(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    _count(source.device.type, target.device.type, source.numel())
    _raw(target).copy_(_raw(source))
    return target


def _converted(operation: Any, source: torch.Tensor, kwargs: Any) -> torch.Tensor:
    target = torch.device(kwargs.get("device") or source.device)
    _count(source.device.type, target.type, source.numel())
    result = operation(_raw(source), **{**kwargs, "device": "cpu"})
    return OnOther(result) if target.type == NAME else result


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.raw if isinstance(tensor, OnOther) else tensor


def _count(source: str, target: str, size: int) -> None:
    if source == target:
        return
    frames = (frame for frame in reversed(traceback.extract_stack()) if _asks(frame.filename))
    frame = next(frames, None)
    place = "" if frame is None else f"{Path(frame.filename).relative_to(ROOT).as_posix()}:{frame.name}"
    COPIES.append(Copy(target, size, place))


def _asks(file: str) -> bool:
    if file.endswith("/transfers.py"):  # it only counts: who calls it asked for the copy
        return False
    return any(file.startswith(f"{ROOT}/{package}/") for package in ("rayfed_kd", "cluster", "algorithms"))
