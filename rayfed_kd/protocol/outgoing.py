"""A reply between a client's step and the wire, where a recipe's features change it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from rayfed_kd.protocol.context_facts import DispatchFacts
from rayfed_kd.protocol.messages import Array, Number


@dataclass(frozen=True)
class OutgoingReply:
    """A reply before it is encoded.

    Attributes:
        parts: its parts.
        metadata: its numbers.
        told: what features tell their counterparts at the server, by name; no number of the method's.
    """

    parts: Mapping[str, Array]
    metadata: Mapping[str, Number]
    told: Mapping[str, float] = field(default_factory=dict)


class ReplyFeature(Protocol):
    """A feature of a recipe that changes clients' replies at their host, as privacy does."""

    def outgoing(
        self,
        reply: OutgoingReply,
        message: Mapping[str, Tensor],
        facts: DispatchFacts,
        told: Mapping[str, float],
    ) -> OutgoingReply:
        """The reply as it is to leave.

        Args:
            reply: as the step made it, or the feature before this one.
            message: the decoded parts that it answers.
            facts: of the step; they name random streams.
            told: what the features' counterparts at the server tell with the call, by name.
        Raises: RunError if the reply holds what the feature cannot take.
        """
        ...
