"""Which of a module's tensors lie in its flat vector, and which stay beside it.

In the vector, as float32: the parameters that train, then the buffers that training changes. Beside it, each
in its own type: frozen parameters and all other buffers, which are as they were built, alike everywhere; and
BatchNorm's counters of batches, which nothing reads: they begin anew with every load.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from rayfed_kd.errors import RecipeError

# The attribute that names a module's float32 buffers that training changes. Without it all of them may.
MOVING = "rayfed_kd_moving"
# A module that has it keeps torch's order of elements in weights of four sides; others have channels-last.
PLAIN_ORDER = "rayfed_kd_plain_order"
Place = tuple[dict[str, Any], str]  # an owner's table of parameters or of buffers, and a name in it


@dataclass(frozen=True)
class HeldTensor:
    """A tensor of a module, which may have it in several places.

    Attributes:
        name: the first of its names, as `block1.norm.running_var`.
        shape: its own.
        is_parameter: whether it is a parameter, rather than a buffer.
        owners: the modules within the module that have it.
        places: where each of them has it.
    """

    name: str
    shape: torch.Size
    is_parameter: bool
    owners: tuple[nn.Module, ...]
    places: tuple[Place, ...]

    @property
    def now(self) -> Tensor:
        """What is at its first place now."""
        table, name = self.places[0]
        tensor: Tensor = table[name]
        return tensor

    @property
    def is_counter(self) -> bool:
        """Whether it counts BatchNorm's batches."""
        return isinstance(self.owners[0], _BatchNorm) and self.places[0][1] == "num_batches_tracked"

    def assign(self, tensor: Tensor) -> None:
        """Puts a tensor in all of its places."""
        for table, name in self.places:
            table[name] = tensor


@dataclass(frozen=True)
class ModuleTensors:
    """A module's tensors by what becomes of them, each in the module's order.

    Attributes:
        trained: parameters that take a gradient.
        moving: float32 buffers that training changes.
        counters: BatchNorm's, of batches.
        fixed: all others.
    """

    trained: tuple[HeldTensor, ...]
    moving: tuple[HeldTensor, ...]
    counters: tuple[HeldTensor, ...]
    fixed: tuple[HeldTensor, ...]

    @classmethod
    def of(cls, module: nn.Module) -> ModuleTensors:
        """A module's, as it was built.

        Raises: RecipeError if it has one that a vector cannot hold.
        """
        _check_kind(module)
        slots = list(held_tensors(module))
        parameter_ids = {id(parameter) for parameter in module.parameters()}
        for slot in slots:
            if slot.is_parameter and slot.now.requires_grad and id(slot.now) not in parameter_ids:
                raise RecipeError(
                    f"its parameters() leaves out {slot.name}; expected requires_grad=False of what stays"
                )
        names = getattr(module, MOVING, None)
        trained = tuple(slot for slot in slots if slot.is_parameter and slot.now.requires_grad)
        buffers = [slot for slot in slots if not slot.is_parameter]
        moving = tuple(
            buf for buf in buffers if buf.now.dtype == torch.float32 and (names is None or buf.name in names)
        )
        counters = tuple(buf for buf in buffers if buf.is_counter)
        elsewhere = {id(slot) for slot in (*trained, *moving, *counters)}
        fixed = tuple(slot for slot in slots if id(slot) not in elsewhere)
        for slot in (*trained, *buffers):
            _check_tensor(slot)
        _check_memory(trained + moving, slots)
        return cls(trained, moving, counters, fixed)


def held_tensors(module: nn.Module) -> Iterator[HeldTensor]:
    """Each of a module's parameters, then each of its buffers, once."""
    for kind in ("_parameters", "_buffers"):
        entries: dict[int, tuple[str, torch.Size, list[nn.Module], list[Place]]] = {}
        for prefix, owner in module.named_modules():
            table = getattr(owner, kind)
            for name, tensor in table.items():
                if tensor is not None:
                    path = f"{prefix}.{name}" if prefix else name
                    _, _, owners, places = entries.setdefault(id(tensor), (path, tensor.shape, [], []))
                    owners.append(owner)
                    places.append((table, name))
        for name, shape, owners, places in entries.values():
            yield HeldTensor(name, shape, kind == "_parameters", tuple(owners), tuple(places))


def _check_kind(module: nn.Module) -> None:
    """Refuse modules whose tensors cannot be exchanged, and one whose counters would have to travel."""
    for name, part in module.named_modules():
        called = name or "it"
        if isinstance(part, torch.jit.ScriptModule):
            raise RecipeError(f"{called} is a scripted module; expected the nn.Module that it was made from")
        for key, tensor in [*part._parameters.items(), *part._buffers.items()]:
            path = f"{name}.{key}" if name else key
            if tensor is None:
                continue
            if is_lazy(tensor):
                raise RecipeError(
                    f"{path} has no shape before the first batch; expected a layer whose sizes are given"
                )
            if tensor.is_meta or tensor.layout != torch.strided or tensor.is_quantized:
                kind = "on torch's meta device" if tensor.is_meta else "sparse or quantised"
                raise RecipeError(f"{path} is {kind}; expected a plain tensor with values")
        if isinstance(part, _BatchNorm) and part.momentum is None and part.running_mean is not None:
            raise RecipeError(
                f"{called} is a {type(part).__name__} with momentum=None; expected a momentum, as 0.1"
            )


def _check_tensor(slot: HeldTensor) -> None:
    if slot.is_parameter and slot.now.dtype != torch.float32:
        raise RecipeError(
            f"{slot.name} is {slot.now.dtype}; models are float32 only, as vectors of their weights are. "
            "local.precision=bf16 trains such a model in bfloat16"
        )
    if not slot.is_parameter and slot.now.requires_grad:
        raise RecipeError(
            f"{slot.name} is a buffer that takes a gradient; expected an nn.Parameter, or a buffer without"
        )


def _check_memory(in_vector: Sequence[HeldTensor], slots: Sequence[HeldTensor]) -> None:
    """Refuse tensors that are views of one another: in a vector each has a place of its own."""
    places = {id(slot) for slot in in_vector}
    last, end = slots[:1], 0
    for start, stop, slot in sorted(map(_stretch, slots), key=lambda item: item[:2]):
        if start < end and stop > start and (places & {id(slot), id(last[0])}):
            raise RecipeError(
                f"{last[0].name} and {slot.name} are different tensors in the same memory; expected one "
                "tensor under two names, or a copy"
            )
        if stop > end:
            last, end = [slot], stop


def _stretch(slot: HeldTensor) -> tuple[int, int, HeldTensor]:
    """The memory that a tensor lies in."""
    tensor = slot.now
    if not tensor.numel():
        return tensor.data_ptr(), tensor.data_ptr(), slot
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size(), slot
