"""The server's records of its clients, and how a round's changes to them are undone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


class Records(Mapping[int, ClientRecord]):
    """Client id -> its record. A client that was never sampled has an empty record.

    Args:
        records: those of a checkpoint; None: no client was sampled yet.

    Attributes:
        round: the round that began last; 0 before the first.
        changed: clients whose record was put or undone since whoever writes checkpoints emptied this set.
    """

    def __init__(self, records: Mapping[int, ClientRecord] | None = None) -> None:
        self._records, self.round = dict(records or {}), 0
        self.changed: set[int] = set(self._records)
        # Old values of what the last two rounds changed. Two, as a run that is stopped while a round is
        # still being evaluated also undoes that round.
        self._before: list[dict[int, ClientRecord | None]] = [{}, {}]

    def __getitem__(self, client: int) -> ClientRecord:
        return self._records.get(client, ClientRecord())

    def __contains__(self, client: object) -> bool:
        # Not the mapping's own, for which `__getitem__` would have to raise.
        return client in self._records

    def __iter__(self) -> Iterator[int]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def put(self, client: int, record: ClientRecord) -> None:
        """Replace a client's record."""
        # Only the first change of a round is remembered: `undo` restores the value at `begin`.
        self._before[-1].setdefault(client, self._records.get(client))
        self._records[client] = record
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
                del self._records[client]
            else:
                self._records[client] = record
        # Nothing older is remembered, so a third `undo` in a row changes nothing.
        self._before.insert(0, {})
