"""What a client's step gets and gives: the message, decoded once a round, and what the step returned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rayfed_kd.cluster.engine.calls import EvaluationCall, PersonalCall, StepCall, StepError
from rayfed_kd.errors import MisuseError, RayfedError, kind_of, told_in_full
from rayfed_kd.protocol import Array, Handle, Reply, to_tensor
from rayfed_kd.protocol.crossing import same_bits
from rayfed_kd.protocol.wire import Wire, all_finite


@dataclass(frozen=True)
class OpenedMessage:
    """A message's parts, which all steps of this host share, and a copy that shows whether one changed them.

    Attributes:
        parts: on the host's device.
        unchanged: the copy.
    """

    parts: Mapping[str, Tensor]
    unchanged: Mapping[str, Tensor]

    def check_unchanged(self) -> None:
        """Check that no step has changed a part.

        Raises: MisuseError naming it.
        """
        for name, part in self.parts.items():
            if not same_bits(part, self.unchanged[name]):
                raise MisuseError(f"it changed the message's {name!r} in place; expected a clone()")


class LastMessage:
    """Opens messages, and remembers the last one.

    Args:
        wire: decodes them.
        device: where their parts go.
    """

    def __init__(self, wire: Wire, device: torch.device) -> None:
        self._wire, self._device = wire, device
        self._last: tuple[Handle | None, OpenedMessage] = (None, OpenedMessage({}, {}))

    def opened(self, handle: Handle) -> OpenedMessage:
        """The message behind a handle. Handles are compared, not arrays."""
        if self._last[0] != handle:
            arrays = self._wire.decoded(handle.resolve())
            parts = {name: to_tensor(array, self._device) for name, array in arrays.items()}
            copies = {name: part.clone() for name, part in parts.items()}
            self._last = handle, OpenedMessage(parts, copies)
        return self._last[1]


def one_line(call: StepCall | EvaluationCall | PersonalCall | str, error: BaseException) -> StepError:
    """An error of a client's step, with its place; with its stack trace if it is not one of ours."""
    if isinstance(error, StepError):
        return error
    if isinstance(error, RayfedError):
        return StepError(f"{call}: {error}")
    return StepError(f"{call} failed:\n{told_in_full(error)}")


def checked_outcome(call: StepCall, returned: Any) -> tuple[Any, Reply]:
    """What a step returned, if it is (state, Reply).

    Raises: StepError in one line: a stack trace would show our code, not the method's.
    """
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Reply):
        return returned
    what = kind_of(returned)
    if isinstance(returned, tuple):
        what = f"({', '.join(type(item).__name__ for item in returned)})"
    stateless = (
        "; a method whose clients keep nothing returns (None, reply)" if isinstance(returned, Reply) else ""
    )
    raise StepError(f"{call}: it returned {what}, expected (state, Reply){stateless}")


def non_finite_parts(arrays: Mapping[str, Array], wire: Mapping[str, Array]) -> tuple[str, ...]:
    """Parts with a NaN or infinite value, also if only the encoded form has one: a float16 may overflow."""
    names = [name for name, array in arrays.items() if not all_finite(array)]
    # Without a codec `encoded` returns the very same mapping, which needs no second look.
    if wire is not arrays:
        names += [
            name for key in wire if (name := key.partition("/")[0]) not in names and not all_finite(wire[key])
        ]
    return tuple(names)
