"""`local.sum_replies` in a run's rounds: hosts get the slots that replies will replace, and send sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rayfed_kd.cluster.engine.calls import StepCall, StepResult
from rayfed_kd.cluster.server.features import RoundFeature
from rayfed_kd.cluster.server.replies import ReceivedParts, ReceivedReply
from rayfed_kd.protocol import Method, PartRef
from rayfed_kd.protocol.declaration import kept_slots
from rayfed_kd.protocol.summed import GroupSum, KeptSlots, SummedReply


class SummedReplies(RoundFeature):
    """The server's side of `local.sum_replies`."""

    def __init__(self) -> None:
        self._slots: Mapping[str, KeptSlots] = {}

    def begin_round(self, method: Method[Any, Any], server: Any) -> None:
        """Look up what the method's server keeps of clients' replies; by part."""
        self._slots = kept_slots(method.up, server)

    def outgoing(self, call: StepCall) -> StepCall:
        """The call with the slots that the client's reply will replace, unless the server keeps none."""
        if call.observing or not self._slots:
            return call
        return replace(call, replaces=replaced_slots(self._slots, call.facts.client))

    def incoming(self, reply: ReceivedReply, result: StepResult) -> ReceivedReply:
        """The reply, whose parts are in its group's sums; a slot keeps its own, or nobody."""
        assert isinstance(result.parts, GroupSum)
        assert result.facts.weights is not None
        reply.summed = SummedReply(result.parts, result.facts.weights, result.facts.replaced)
        reply.handle = None
        if result.single is not None:
            reply.handle = reply.parts.on(result.single)
        return reply


def replaced_slots(slots: Mapping[str, KeptSlots], client: int) -> dict[str, tuple[PartRef, float]]:
    """Part -> the slot that a client's reply will replace, as it goes to a host, and what that weighs.

    Args:
        slots: by part, as `kept_slots` gives them.
        client: its id; one without a slot has none to replace.
    """
    replaced = dict[str, tuple[PartRef, float]]()
    for name, kept in slots.items():
        if (slot := kept.entries.get(client)) is not None:
            handle = slot.handle.plain if isinstance(slot.handle, ReceivedParts) else slot.handle
            replaced[name] = PartRef(handle, slot.name), kept.weights[client]
    return replaced
