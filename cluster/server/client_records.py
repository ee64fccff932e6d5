"""The server's records of its clients, and how a round's changes to them are undone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rayfed_kd.protocol import Handle


@dataclass(frozen=True)
class ClientRecord:
    """What the server stores of a client between dispatches.

    Attributes:
        participations: how often the client was sampled.
        state: the client's latest state, by reference; None before its first reply.
        version: number of the dispatch that produced that state; 0 without a state.
        exchange: steps that the client was sent in its current participation.
    """

    participations: int = 0
    state: Handle | None = None
    version: int = 0
    exchange: int = 0

    # Not by `dataclasses.replace`, which takes four times as long, three times a client and round.
    def begun(self) -> ClientRecord:
        """The record as a participation begins."""
        return ClientRecord(self.participations + 1, self.state, self.version, 0)

    def sent(self) -> ClientRecord:
        """The record after a step was sent."""
        return ClientRecord(self.participations, self.state, self.version, self.exchange + 1)

    def replied(self, state: Handle, version: int) -> ClientRecord:
        """The record after the reply of dispatch `version`, which brought a state."""
        return ClientRecord(self.participations, state, version, self.exchange)


class Records(dict[int, ClientRecord]):
    """Client id -> its record, changed by `put` alone. One that was never sampled has an empty record.

    Args:
        records: those of a checkpoint; None: no client was sampled yet.

    Attributes:
        round: the round that began last; 0 before the first.
        changed: clients whose record was put or undone since whoever writes checkpoints emptied this set.
    """

    def __init__(self, records: Mapping[int, ClientRecord] | None = None) -> None:
        super().__init__(records or {})
        self.round, self.changed = 0, set(self)
        # Old values of what the last two rounds changed. Two, as a run that is stopped while a round is
        # still being evaluated also undoes that round.
        self._before: list[dict[int, ClientRecord | None]] = [{}, {}]

    def __missing__(self, client: int) -> ClientRecord:
        return ClientRecord()

    def put(self, client: int, record: ClientRecord) -> None:
        """Replace a client's record."""
        # Only the first change of a round is remembered: `undo` restores the value at `begin`.
        self._before[-1].setdefault(client, self.get(client))
        self[client] = record
        self.changed.add(client)

    def begin(self, round_index: int) -> None:
        """Mark the start of a round. `undo` can then undo this round and the one before it."""
        self._before = [self._before[-1], {}]
        self.round = round_index

    def undo(self) -> None:
        """Restore the records as of the last `begin`; called again, as of the one before it."""
        for client, record in self._before.pop().items():
            self.changed.add(client)
            if record is None:
                del self[client]
            else:
                self[client] = record
        # Nothing older is remembered, so a third `undo` in a row changes nothing.
        self._before.insert(0, {})
