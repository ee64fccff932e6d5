"""A round's traffic with its ledger of bytes, and the run's counters.

The ledger has the bytes of all messages and replies, by client, direction and kind. It counts the bytes of
the arrays that really crossed: elements x element size, or all that a codec made of it. Beside them stand the
bytes that the parts would have taken without a codec. Metadata (plain numbers, 8 bytes each) and parts
declared as `Simulated` are counted under kinds of their own, outside the totals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rayfed_kd.cluster.engine.calls import StepFacts
from rayfed_kd.errors import RunError, did_you_mean
from rayfed_kd.protocol import Declaration, Simulated
from rayfed_kd.protocol.declaration import kinds
from rayfed_kd.protocol.message_codec import Direction
from rayfed_kd.protocol.wire import PartSize

METADATA, SIMULATION = "metadata", "simulation"
METADATA_BYTES = 8  # of each number


def travelling(declared: Declaration, sizes: Mapping[str, PartSize]) -> int:
    """Bytes of the parts that would cross in a real deployment.

    Args:
        declared: part -> kind, as the method declares them for this direction.
        sizes: part -> its size.
    Returns: bytes, without parts declared as `Simulated` and without metadata.
    """
    return sum(size.bytes for name, size in sizes.items() if not isinstance(declared.get(name), Simulated))


@dataclass
class Ledger:
    """A round's traffic.

    Attributes:
        declared: direction -> part -> kind, as the method declares them.
        entries: (client, direction, kind) -> [bytes, bytes without a codec, parts].
    """

    declared: Mapping[Direction, Declaration] = field(default_factory=dict)
    entries: dict[tuple[int, str, str], list[int]] = field(default_factory=dict)

    def count(self, client: int, direction: Direction, sizes: Mapping[str, PartSize], metadata: int) -> None:
        """Count one message or reply.

        Args:
            client: id of its receiver or sender.
            direction: "down" for messages, "up" for replies.
            sizes: part -> its size.
            metadata: number of plain numbers that came with it.
        Raises: RunError if a part is not declared.
        """
        declared = self.declared[direction]
        kind_by_part = kinds(declared)
        for name, size in sizes.items():
            if name not in declared:
                known, hint = ", ".join(sorted(declared)) or "none", did_you_mean(name, declared)
                raise RunError(f"part {name!r} goes {direction} undeclared; declared are {known}.{hint}")
            kind = kind_by_part.get(name, SIMULATION)
            self._add(client, direction, kind, size.bytes, size.raw_bytes, 1)
        if metadata:
            numbers = metadata * METADATA_BYTES
            self._add(client, direction, METADATA, numbers, numbers, metadata)

    def rows(self, round_index: int) -> list[dict[str, Any]]:
        """Rows of the table `messages`, ordered by client, direction and kind."""
        names = ("client", "direction", "kind", "bytes", "raw_bytes", "parts")
        return [
            {"round": round_index, **dict(zip(names, (*key, *counted), strict=True))}
            for key, counted in sorted(self.entries.items())
        ]

    def total(self, direction: Direction) -> int:
        """Bytes of all parts in a direction, without metadata and parts declared as `Simulated`."""
        return sum(
            size
            for (_, way, kind), (size, *_) in self.entries.items()
            if way == direction and kind not in (METADATA, SIMULATION)
        )

    def _add(self, client: int, direction: str, kind: str, size: int, raw: int, parts: int) -> None:
        entry = self.entries.setdefault((client, direction, kind), [0, 0, 0])
        for place, count in enumerate((size, raw, parts)):
            entry[place] += count


@dataclass
class Traffic:
    """What a round's exchanges leave for the tables.

    Attributes:
        ledger: bytes by client, direction and kind.
        facts: (client, its step's facts), in order of arrival.
        cohort: replies of the exchange with most clients, and all that were dropped up to it.
        staleness: staleness of each used reply, in updates.
        dropped: number of replies that were not used.
        bad: why replies were left out by `faults.bad_replies: drop`, which `dropped` counts, too.
        logged: what codecs of messages counted: name -> (sum, count).
        dispatch_s: real seconds spent on publishing messages.
        answers_s: real seconds spent on waiting for answers to questions.
    """

    ledger: Ledger = field(default_factory=Ledger)
    facts: list[tuple[int, StepFacts]] = field(default_factory=list)
    cohort: int = 0
    staleness: list[int] = field(default_factory=list)
    dropped: int = 0
    bad: list[str] = field(default_factory=list)
    logged: dict[str, tuple[float, int]] = field(default_factory=dict)
    dispatch_s: float = 0.0
    answers_s: float = 0.0

    def leave_out(self, why: str) -> None:
        """Count a bad reply that is not used."""
        self.dropped += 1
        self.bad.append(why)


@dataclass
class Counters:
    """Samplings and dispatches since the run's start. Draws are seeded, and calls numbered, by them."""

    draws: int = 0
    dispatches: int = 0
