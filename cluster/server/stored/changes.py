"""What checkpoints have written already, so that the next one writes only what has changed since.

Client states, slots and messages under way are large and change one by one: each is appended once to a log,
the file `states-000010.log`, and a checkpoint's tree has its place there. When as many bytes of the log are
no longer referred to as are, all is written anew to another log, so a log has at most twice the bytes in use
and one checkpoint's changes.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from rayfed_kd.cluster.server.client_records import ClientRecord, Records
from rayfed_kd.cluster.server.event_queue import Dispatch
from rayfed_kd.cluster.server.stored.appended import AppendedFile, Place
from rayfed_kd.protocol import Array, Handle, PartRef
from rayfed_kd.protocol.state_packing import Packed, pack

# In place of a length in bytes.
NO_STATE_YET, NO_RECORD = -1, -2
# Rows of records that a checkpoint's own file holds: those that have changed since the table of all records
# was last appended. Each has 48 bytes, so 10,000 rows are written in a millisecond, and 1,000,000 in 0.1 s.
MOST_ROWS = 10_000


class Changes:
    """One log, and what lies where in it.

    Args:
        path: the log; it is created when something is appended.

    Attributes:
        base: where the table of all records lies that `records` adds to; None: there is none.
    """

    def __init__(self, path: Path) -> None:
        self.log = AppendedFile(path)
        self._rows = np.zeros((0, 5), dtype=np.int64)  # by client: what `_row` gives
        self._since_base: set[int] = set()
        self.base: Place | None = None
        # (id of a handle, part) -> the handle and its place. Weak: what nobody needs may leave the store.
        self._places: dict[tuple[int, str], tuple[weakref.ref[Any], Place]] = {}
        self._used: dict[tuple[int, str], tuple[weakref.ref[Any], Place]] = {}
        self._state_bytes = 0

    @property
    def worn(self) -> bool:
        """Whether at least half of the log's bytes are no longer referred to."""
        live = self._state_bytes + sum(place.length for _, place in self._places.values())
        live += 0 if self.base is None else self.base.length
        return self.log.size > 0 and self.log.size >= 2 * live

    def written(self) -> None:
        """Forget the places that the checkpoint just written does not refer to."""
        self._places, self._used = self._used, {}

    def records(self, records: Mapping[int, ClientRecord]) -> Array:
        """The rows that have changed since `base`, [n, 6] int64: the client first. States are appended."""
        changed = {*records}
        if isinstance(records, Records) and len(self._rows):
            changed = records.changed
        elif len(self._rows):
            changed |= set(np.flatnonzero(self._rows[:, 4] != NO_RECORD).tolist())
        if changed and max(changed) >= len(self._rows):
            more = np.zeros((2 * max(changed) + 1 - len(self._rows), 5), dtype=np.int64)
            more[:, 4] = NO_RECORD
            self._rows = np.concatenate([self._rows, more])
        for client in sorted(changed):
            before = self._rows[client].tolist()
            row = self._row(records[client], before) if client in records else (0, 0, 0, 0, NO_RECORD)
            if row != tuple(before):
                self._state_bytes += max(row[4], 0) - max(before[4], 0)
                self._rows[client] = row
                self._since_base.add(client)
        if len(self._since_base) > MOST_ROWS:
            present = np.flatnonzero(self._rows[:, 4] != NO_RECORD)
            self.base, self._since_base = self.log.append(None, [self._table(present)]), set()
        return self._table(np.array(sorted(self._since_base), dtype=np.int64))

    def _table(self, clients: Array) -> Array:
        return np.concatenate([clients[:, None], self._rows[clients]], axis=1)

    def _row(self, record: ClientRecord, before: Sequence[int]) -> tuple[int, ...]:
        """Participations, version, exchange, and the state's place."""
        _, version, _, offset, length = before
        if record.state is None:
            offset, length = 0, NO_STATE_YET
        # The version is the number of the dispatch that made the state, so an equal one is the same state.
        elif length < 0 or version != record.version:
            packed: Packed | None = record.state.resolve()["state"]
            # A client that keeps no state has a handle all the same, and needs no entry.
            empty = packed is None or (packed.structure is None and not packed.arrays)
            offset, length = (0, 0) if empty else self.log.append(*packed)  # type: ignore[misc]
        return record.participations, record.version, record.exchange, offset, length

    def slots(self, refs: Sequence[PartRef]) -> Array:
        """Where slots' arrays lie, [n, 2] int64; those that are new are appended."""
        places = [self._place(ref.handle, ref.name) for ref in refs]
        return np.array(places, dtype=np.int64).reshape(-1, 2)

    def dispatches(self, dispatches: Sequence[Dispatch]) -> dict[str, Any]:
        """Dispatches without a reply. A broadcast's message is stored once; the records hold the states."""
        messages: list[Handle] = []
        listed = []
        for dispatch in dispatches:
            facts, message = dispatch.call.facts, dispatch.call.message
            # Handles are compared, not arrays: clients of one broadcast have the same handle.
            if message not in messages:
                messages.append(message)
            plain = {f.name: getattr(dispatch, f.name) for f in fields(dispatch) if f.name != "call"}
            call = {
                "step": dispatch.call.step,
                "facts": [facts.client, facts.round, facts.participation, facts.exchange],
                "message": messages.index(message),
                "metadata": dict(dispatch.call.metadata),
            }
            listed.append({**plain, "elements": dict(dispatch.elements), "call": call})
        places = [self._place(message) for message in messages]
        return {"messages": places, "dispatches": listed}

    def _place(self, handle: Handle, name: str = "") -> Place:
        """Where a part of a handle's arrays lies; without its name, all of them."""
        key = id(handle), name
        known = self._used.get(key) or self._places.get(key)
        # The object, too: another one may have the number of one that is gone.
        if known is None or known[0]() is not handle:
            arrays = handle.resolve()
            packed = Packed(None, [arrays[name]]) if name else pack(dict(arrays))
            known = weakref.ref(handle), self.log.append(*packed)
        self._used[key] = known
        return known[1]
