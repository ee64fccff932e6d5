"""Checkpoints read back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from rayfed_kd.cluster.engine.calls import StepCall
from rayfed_kd.cluster.server.client_records import ClientRecord
from rayfed_kd.cluster.server.event_queue import Dispatch
from rayfed_kd.cluster.server.stored.appended import read_entry
from rayfed_kd.cluster.server.stored.changes import NO_RECORD, NO_STATE_YET
from rayfed_kd.cluster.server.stored.snapshot import Snapshot
from rayfed_kd.protocol import Array, DispatchFacts, Handle
from rayfed_kd.protocol.state_packing import Packed
from rayfed_kd.protocol.state_unpacking import Publish, unpack

Entry = Callable[[Sequence[int]], Packed]


def load_snapshot(path: Path, publish: Publish, device: torch.device | str) -> Snapshot:
    """The state in a checkpoint in which `checkpoint_fault` found nothing.

    Args:
        path: the file with its tree.
        publish: makes client states and slots readable by the hosts again.
        device: where the server's tensors go that were not on the CPU.
    """
    with ExitStack() as opened:
        file = opened.enter_context(safe_open(path, framework="numpy"))
        tree = json.loads(file.metadata()["tree"])
        log = tree.get("log")  # None: nothing was appended
        appended = None if log is None else opened.enter_context((path.parent / log).open("rb"))

        def entry(place: Sequence[int]) -> Packed:
            if not place[1]:  # of a client that keeps no state
                return Packed(None, [])
            assert appended is not None  # a tree with places names their file
            return Packed(*read_entry(appended, place))

        def packed(stored: Sequence[Any]) -> Packed:
            structure, names = stored
            return Packed(structure, [file.get_tensor(name) for name in names])

        def slots(places: Array) -> list[Array]:
            return [entry(place).arrays[0] for place in places.tolist()]

        base = [] if tree["base"] is None else [entry(tree["base"]).arrays[0]]
        records = _records([*base, file.get_tensor("records")], entry, publish)
        # As they were sent, encoded: clients decode them, and so does the server to see what a late reply
        # changed.
        messages = [publish(unpack(entry(one))) for one in tree["under_way"]["messages"]]
        return Snapshot(
            round=tree["round"],
            server=unpack(packed(tree["server"]), device, keep_cpu=True, publish=publish, entries=slots),
            records=records,
            wall_s=tree["wall_s"],
            now=tree["now"],
            draws=tree["draws"],
            dispatches=tree["dispatches"],
            privacy=tree.get("privacy"),
            asked_rounds=tree.get("asked_rounds", False),
            under_way=[_dispatch(one, messages, records) for one in tree["under_way"]["dispatches"]],
        )


def _records(tables: Sequence[Array], entry: Entry, publish: Publish) -> dict[int, ClientRecord]:
    """The records of tables of which a later row of a client replaces an earlier one."""
    latest: dict[int, list[int]] = {}
    for table in tables:
        latest.update((row[0], row[1:]) for row in table.tolist())
    records = {}
    for client, (participations, version, exchange, offset, length) in sorted(latest.items()):
        if length == NO_RECORD:
            continue
        state = None if length == NO_STATE_YET else publish({"state": entry((offset, length))})
        records[client] = ClientRecord(participations, state, version, exchange)
    return records


def _dispatch(
    stored: Mapping[str, Any], messages: Sequence[Handle], records: Mapping[int, ClientRecord]
) -> Dispatch:
    call, facts = stored["call"], DispatchFacts(*stored["call"]["facts"])
    # A busy client is not asked again, so its record still has the state that this dispatch started from.
    record = records[facts.client]
    step = StepCall(
        step=call["step"],
        facts=facts,
        message=messages[call["message"]],
        metadata=call["metadata"],
        state=record.state,
        state_version=record.version,
        number=stored["number"],
    )
    return Dispatch(**{**stored, "call": step})
