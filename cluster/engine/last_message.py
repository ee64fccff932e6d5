"""The last message that a host got, decoded on its device: a broadcast is decoded once a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rayfed_kd.errors import MisuseError
from rayfed_kd.protocol import Handle, to_tensor
from rayfed_kd.protocol.crossing import same_bits
from rayfed_kd.protocol.wire import Wire


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
