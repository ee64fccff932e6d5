"""Packs a group's calls and results into few objects, for their way to a host and back.

Ray's serializer calls Python for every object that is not built in. For a group of small clients this costs
more than their training. So plain data travels as one byte string, and parts of equal shape as one array.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rayfed_kd.cluster.engine.calls import Held, StepCall
from rayfed_kd.protocol import Array, Handle

Parts = Mapping[str, Array]


@dataclass(frozen=True)
class PackedCalls:
    """A group's calls.

    Attributes:
        plain: the pickled fields without handles.
        handles: each call's message and state, not pickled, as Ray must see references to keep objects alive.
    """

    plain: bytes
    handles: Sequence[tuple[Handle, Handle | None]]

    @classmethod
    def of(cls, calls: Sequence[StepCall]) -> PackedCalls:
        """Pack a group's calls."""
        plain = [replace(call, message=Held(), state=None) for call in calls]
        return cls(pickle.dumps(plain), [(call.message, call.state) for call in calls])

    def calls(self) -> list[StepCall]:
        """The unpacked calls, in order."""
        calls = zip(pickle.loads(self.plain), self.handles, strict=True)
        return [replace(call, message=message, state=state) for call, (message, state) in calls]


def stacked(parts: Sequence[Parts]) -> Parts | list[Parts]:
    """Stack clients' parts into one array a name, a row a client.

    Returns: the arrays by name; one client's parts as they are; all parts as a list if their names, shapes or
        types differ.
    """
    first, kinds = parts[0], _kinds(parts[0])
    if len(parts) == 1:
        return first
    if not first or any(_kinds(part) != kinds for part in parts[1:]):
        return list(parts)
    # Ray sees one array per name instead of one per client and name.
    return {name: np.stack([part[name] for part in parts]) for name in first}


def unstacked(stack: Any) -> Sequence[Any]:
    """What `stacked` gave of several clients, a mapping for each again; lists of states as they are."""
    if not isinstance(stack, Mapping):
        return list(stack)
    count = len(next(iter(stack.values()), ()))
    return [{name: array[place, ...] for name, array in stack.items()} for place in range(count)]


def _kinds(parts: Parts) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    return {name: (part.shape, part.dtype) for name, part in parts.items()}
