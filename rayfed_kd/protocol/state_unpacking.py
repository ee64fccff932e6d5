"""States again, from their structure and arrays: what `state_packing.pack` gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rayfed_kd.errors import RunError
from rayfed_kd.protocol.messages import Array, Handle, PartRef, to_tensor
from rayfed_kd.protocol.state_packing import Packed, field_names, loaded, made_of

Publish = Callable[[Mapping[str, Any]], Handle]
Entries = Callable[[Array], Sequence[Array]]
Device = torch.device | str


def unpack(
    packed: Packed | None,
    device: Device = "cpu",
    *,
    keep_cpu: bool = False,
    publish: Publish | None = None,
    entries: Entries | None = None,
) -> Any:
    """The state again. Tensors lie in torch's own memory.

    Args:
        packed: None: the state of a client that keeps nothing.
        device: where its tensors go.
        keep_cpu: tensors that lay on the CPU stay there, as a server's vectors do beside modules on a GPU.
        publish: makes a slot's array readable for hosts again; a state without slots needs none.
        entries: gives the slots that lie at places; None: there are none elsewhere.
    Raises: RunError if this process has not loaded a class that the state names.
    """
    if packed is None:
        return None
    return _Unpacking(packed.arrays, device, keep_cpu, publish, entries).value(packed.structure)


@dataclass(frozen=True)
class _Unpacking:
    arrays: Sequence[Array]
    device: Device
    keep_cpu: bool
    publish: Publish | None
    entries: Entries | None = None

    def value(self, structure: Any) -> Any:
        if not isinstance(structure, list):
            return structure
        kind, content, *rest = structure
        if kind in ("tensor", "array", "number", "part"):
            return self._leaf(kind, self.arrays[content], *rest)
        if kind in ("numbers", "slots", "slot"):
            return self._columns(kind, content, *rest)
        if kind == "mapping":
            return {self.value(key): self.value(value) for key, value in content}
        if kind in ("list", "tuple"):
            return {"list": list, "tuple": tuple}[kind](self.value(item) for item in content)
        return made_of(_class(kind), {name: self.value(value) for name, value in content.items()})

    def _leaf(self, kind: str, array: Array, *about: Any) -> Any:
        """`about`: a part's name; or a tensor's device, and type and shape of what is there as bytes."""
        if kind == "part":
            return self._published(array, *about)
        if kind == "tensor":
            where, *as_bytes = about
            tensor = to_tensor(array, "cpu" if self.keep_cpu and where == "cpu" else self.device)
            return tensor.view(getattr(torch, as_bytes[0])).reshape(as_bytes[1]) if as_bytes else tensor
        values = (array.view(about[0]).reshape(about[1]) if about else array).copy()
        return values if kind == "array" else values[()]

    def _columns(self, kind: str, place: int, name: str = "") -> Any:
        """`name`: of the slots' part."""
        if kind == "numbers":
            return dict(zip(self.arrays[place].tolist(), self.arrays[place + 1].tolist(), strict=True))
        if self.entries is None:
            raise RunError("this state has slots, which lie in another file")
        if kind == "slot":
            return self._published(self.entries(self.arrays[place])[0], name)
        keys = self.arrays[place].tolist()
        slots = self.entries(self.arrays[place + 1])
        return {key: self._published(array, name) for key, array in zip(keys, slots, strict=True)}

    def _published(self, array: Array, name: str) -> PartRef:
        if self.publish is None:
            raise RunError("this state has slots, which lie where the server publishes them")
        return PartRef(self.publish({name: array}), name)


def _class(name: str) -> Any:
    """A state's class by name, of a module that is loaded: nothing is imported or called for a file."""
    kind = loaded(name)
    if not isinstance(kind, type) or field_names(kind) is None:
        raise RunError(f"a state holds a {name}, which this version does not have or has not loaded")
    return kind
