"""States as a plain structure and arrays: one form for the wire, for checkpoints and for counting bytes.

    packed = pack(state)              # Packed(structure, arrays): lists, texts and numbers; numpy arrays
    state = unpack(packed, device)    # the same classes, bit for bit; in `state_unpacking`
    own = copied(state)               # the same, without leaving its devices

A state is made of dict, list, tuple, dataclasses and named tuples that a module defines, of dense tensors,
arrays, and of None, bool, int, float and str. Each comes back as exactly what it was. What is something else,
also a subclass of one of these, is refused: on every engine, at the step that made it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from rayfed_kd.errors import RunError, kind_of
from rayfed_kd.protocol.dense import dense_fault, stored
from rayfed_kd.protocol.messages import Array, PartRef, to_array

INT64 = 2**63
# Python writes and reads no longer numbers, and its JSON no deeper structures.
INT_BITS, DEPTH = 13_000, 100
PLAIN = (type(None), bool, int, float, str)
Places = Callable[[Sequence[PartRef]], Array]
Leaf = Array | torch.Tensor


class Packed(NamedTuple):
    """A state that can be sent and stored.

    Attributes:
        structure: the state as JSON has it: plain values as they are, everything else a list [kind, ...].
            The kind of a dataclass or a named tuple is its class, as module:Name. Tensors and arrays are
            named by their place in `arrays`; one that is there as bytes has its type and shape as well.
        arrays: the numbers, in the order in which the structure names them.
    """

    structure: Any
    arrays: Sequence[Array]


class UnstorableError(RunError):
    """A state holds something that can be neither sent nor stored."""


def pack(state: Any, places: Places | None = None) -> Packed:
    """The state's structure and arrays. Arrays of tensors on the CPU may share their memory.

    Args:
        state: the state.
        places: stores slots elsewhere, and gives where each lies, [n, 2] int64; None: they are fetched, and
            stand among the arrays.

    Raises: UnstorableError naming the place and the type of what cannot be packed.
    """
    leaves: list[Leaf] = []
    structure = _structure(state, leaves, (), places)
    return Packed(structure, [to_array(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves])


def check_storable(state: Any, called: str = "the state") -> None:
    """Refuse a state that `pack` would refuse, without copying or fetching anything of it.

    Args:
        state: the state.
        called: how the message begins.
    Raises: UnstorableError naming the place and the type of what cannot be packed.
    """
    try:
        _structure(state, [], (), lambda refs: np.zeros((len(refs), 2), dtype=np.int64))
    except UnstorableError as error:
        raise UnstorableError(f"{called}{str(error).removeprefix('the state')}") from None


def copied(value: Any) -> Any:
    """A copy of a storable state that shares no memory and no container with it; slots are references."""
    kind: type = type(value)
    if isinstance(value, torch.Tensor):
        # Resolved first: a copy of a conjugated or negated view would be such a view.
        value = value.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    elif kind is np.ndarray:
        value = value.copy()
    elif kind is dict:
        # Perhaps a million slots, of which none needs a look.
        flat = set(map(type, value.values())) <= {*PLAIN, PartRef}
        value = dict(value) if flat else {key: copied(item) for key, item in value.items()}
    elif kind in (list, tuple):
        value = kind(map(copied, value))
    elif kind not in (*PLAIN, PartRef) and not isinstance(value, np.generic):
        value = made_of(kind, {name: copied(getattr(value, name)) for name in field_names(kind) or ()})
    return value


def made_of(kind: type, fields: Mapping[str, Any]) -> Any:
    """A dataclass or named tuple with these fields as they are: its `__post_init__` has had its say."""
    if issubclass(kind, tuple):
        return tuple.__new__(kind, fields.values())
    value = object.__new__(kind)
    for name, content in fields.items():
        object.__setattr__(value, name, content)  # also of a frozen one
    return value


def _structure(value: Any, arrays: list[Leaf], path: tuple[Any, ...], places: Places | None) -> Any:
    kind: type = type(value)
    if len(path) > DEPTH:
        raise _refused(path[:3], f"nested more than {DEPTH} levels deep, or holds itself")
    if kind in PLAIN:
        if kind is int and value.bit_length() > INT_BITS:
            raise _refused(path, f"an int of {value.bit_length()} bits")
        return value
    if kind is PartRef or isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return _leaf(value, arrays, path, places)
    if kind is dict:
        short = None if places is None else _columns(value, arrays, places)
        return short or [
            "mapping",
            [[_key(k, path), _structure(v, arrays, (*path, k), places)] for k, v in value.items()],
        ]
    # These two exactly: a named tuple is a tuple as well, and must come back as its own class.
    if kind in (list, tuple):
        return [kind.__name__, _structures(enumerate(value), arrays, path, places)]
    fields = field_names(kind)
    if fields is None:
        plain = next((base for base in (dict, list, tuple, *PLAIN[1:]) if issubclass(kind, base)), None)
        expected = "" if plain is None else f"a {plain.__name__} itself, as {plain.__name__}(...) gives it"
        raise _refused(path, kind_of(value), expected)
    _check_attributes(value, fields, path)
    contents = _structures(((name, getattr(value, name)) for name in fields), arrays, path, places)
    return [_name(kind), dict(zip(fields, contents, strict=True))]


def _refused(path: Sequence[Any], what: str, expected: str = "") -> UnstorableError:
    where = "".join(f".{step}" if isinstance(step, str) else f"[{step!r}]" for step in path)
    expected = expected or (
        "dataclasses and named tuples that a module defines, dict, list, tuple, tensors, arrays and plain "
        "values"
    )
    return UnstorableError(f"the state{where} is {what}, which no checkpoint can hold; expected {expected}")


def _key(key: Any, path: tuple[Any, ...]) -> Any:
    """A dict's key; a tensor would not be found again, as its hash is its own."""
    leaves: list[Leaf] = []
    structure = _structure(key, leaves, path, None)
    if leaves:
        raise _refused(path, f"a dict with {kind_of(key)} as a key", "keys of plain values")
    return structure


def _check_attributes(value: Any, fields: Sequence[str], path: tuple[Any, ...]) -> None:
    """Refuse a dataclass or named tuple whose fields do not make it again."""
    kind = type(value)
    names = [name for name in getattr(value, "__dict__", ()) if name not in fields and name[:2] != "__"]
    if extra := [name for name in names if not isinstance(getattr(kind, name, None), cached_property)]:
        raise _refused(
            path, f"{kind_of(value)} with the attribute {extra[0]!r}, which is no field", "fields alone"
        )
    if missing := [name for name in fields if not hasattr(value, name)]:
        raise _refused(path, f"{kind_of(value)} without its field {missing[0]!r}", "all of its fields")


def _leaf(value: Any, arrays: list[Leaf], path: tuple[Any, ...], places: Places | None) -> list[Any]:
    place = len(arrays)
    if isinstance(value, PartRef):
        if places is not None:
            arrays.append(places([value]))
            return ["slot", place, value.name]
        arrays.append(value.handle.resolve()[value.name])
        return ["part", place, value.name]
    if fault := dense_fault(value):
        raise _refused(path, *fault)
    numbers, *as_bytes = stored(value)
    arrays.append(numbers)
    if isinstance(value, torch.Tensor):
        return ["tensor", place, value.device.type, *as_bytes]
    return ["array" if isinstance(value, np.ndarray) else "number", place, *as_bytes]


def _structures(
    items: Iterable[tuple[Any, Any]], arrays: list[Leaf], path: tuple[Any, ...], places: Places | None
) -> list[Any]:
    return [_structure(value, arrays, (*path, name), places) for name, value in items]


def _columns(mapping: Mapping[Any, Any], arrays: list[Leaf], places: Places) -> list[Any] | None:
    """Many clients' slots, or their weights, as arrays: packed one by one they would take a round's time."""
    values = list(mapping.values())
    if set(map(type, mapping)) != {int} or max(map(abs, mapping)) >= INT64:
        return None
    kinds = set(map(type, values))
    place, keys = len(arrays), np.fromiter(mapping, np.int64, len(mapping))
    if kinds == {float} or (kinds == {int} and max(map(abs, values)) < INT64):
        arrays += [keys, np.array(values)]
        return ["numbers", place]
    if kinds == {PartRef} and len({ref.name for ref in values}) == 1:
        arrays += [keys, places(values)]
        return ["slots", place, values[0].name]
    return None


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


@cache
def field_names(kind: type) -> tuple[str, ...] | None:
    """What makes a dataclass or a named tuple again.

    None for other classes, for one that its name does not lead back to, as what a function defines, and for
    one that is a container beside its fields.
    """
    if loaded(_name(kind)) is not kind:
        return None
    named = issubclass(kind, tuple)
    if named:
        names = getattr(kind, "_fields", None)
    elif dataclasses.is_dataclass(kind):
        names = tuple(field.name for field in dataclasses.fields(kind))
    else:
        return None
    solid = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    return None if names is None or solid is not (tuple if named else object) else tuple(names)


def loaded(name: str) -> Any:
    """What a name, as module:Name, stands for in modules that are loaded; None: nothing."""
    module, _, path = name.partition(":")
    loaded: Any = sys.modules.get(module)
    for part in path.split("."):
        loaded = getattr(loaded, part, None)
    return loaded
