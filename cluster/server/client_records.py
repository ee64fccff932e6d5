"""What the server remembers of its clients, and how a round's changes are taken back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rayfed_kd.protocol import Handle


@dataclass(frozen=True)
class ClientRecord:
    """What the server remembers of a client.

    Attributes:
        participations: how often it was dispatched.
        state: its latest state, by reference; None before its first reply.
        version: the dispatch that made that state.
        exchange: steps run in the current dispatch.
    """

    participations: int = 0
    state: Handle | None = None
    version: int = 0
    exchange: int = 0


class Records(Mapping[int, ClientRecord]):
    """The record of every client seen; others have an empty one.

    Args:
        found: those that a checkpoint holds.
    """

    def __init__(self, found: Mapping[int, ClientRecord] | None = None) -> None:
        self._records = dict(found or {})
        self._before: list[dict[int, ClientRecord | None]] = [{}, {}]  # of the last two rounds

    def __getitem__(self, client: int) -> ClientRecord:
        return self._records.get(client, ClientRecord())

    def __iter__(self) -> Iterator[int]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def put(self, client: int, record: ClientRecord) -> None:
        """A client's record from now on."""
        self._before[-1].setdefault(client, self._records.get(client))
        self._records[client] = record

    def begin(self) -> None:
        """A round begins; its changes can be taken back, and those of the one before it."""
        self._before = [self._before[-1], {}]

    def undo(self) -> None:
        """All is as it was at the last `begin`; at the one before it, if called again."""
        for client, record in self._before.pop().items():
            if record is None:
                del self._records[client]
            else:
                self._records[client] = record
        self._before.insert(0, {})
