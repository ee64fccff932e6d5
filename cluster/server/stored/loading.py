"""Checkpoints read back, and whether one can be used: whole, of this format, the tables reach its round."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from rayfed_kd.cluster.engine.calls import StepCall
from rayfed_kd.cluster.server.client_records import ClientRecord
from rayfed_kd.cluster.server.event_queue import Dispatch
from rayfed_kd.cluster.server.run_state import Snapshot
from rayfed_kd.cluster.server.stored.appended import appended_fault, read_entry
from rayfed_kd.cluster.server.stored.changes import NO_RECORD, NO_STATE_YET
from rayfed_kd.errors import RecipeError
from rayfed_kd.files.whole import file_digest
from rayfed_kd.protocol import Array, DispatchFacts, Handle
from rayfed_kd.protocol.state_packing import Packed
from rayfed_kd.protocol.state_unpacking import Publish, unpack
from rayfed_kd.results.tables import count_rows

# Raised whenever what is stored means something else: 3 has every client's `exchange`, states as `pack` gives
# them, and today's names of the state classes, which moved into rooms; 4 has the tables' numbers of rows; 5
# has client states, slots and messages in a log.
FORMAT = 5
# What a checkpoint holds of a `Snapshot` as it is.
PLAIN = ("round", "wall_s", "now", "draws", "dispatches", "privacy", "asked_rounds")


def checkpoint_fault(note: Path, path: Path, tables: Path | None) -> str | None:
    """Why a checkpoint cannot be used; None if it can.

    Args:
        note: its JSON file, with lengths, hashes and the tables' numbers of rows.
        path: its arrays; the log that the note names lies beside it.
        tables: the run's folder of tables; None: they are not looked at.

    Raises: RecipeError if it is intact and of another format.
    """
    try:
        facts = json.loads(note.read_text(encoding="utf8"))
        if path.stat().st_size != facts["bytes"]:
            return f"is damaged ({path.stat().st_size} bytes for {facts['bytes']})"
        if file_digest(path) != facts["blake2b"]:
            return "is damaged (its checksum is another)"
        if (log := facts.get("log")) is not None:
            fault = appended_fault(path.with_name(log["name"]), log)
            if fault is not None:
                return f"is damaged ({fault})"
        with safe_open(path, framework="numpy") as file:
            version = json.loads(file.metadata()["tree"])["format"]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        return f"is damaged ({type(error).__name__}: {error})"
    # After the checksum, because only an intact file tells its format; a damaged one is passed over.
    _check_format(path, version)
    lost = None if tables is None else _lost_rows(facts, tables)
    return None if lost is None else f"cannot be used ({lost})"


def _check_format(path: Path, version: int) -> None:
    """Refuse an intact checkpoint of another format. Treated as damaged, it would restart the run."""
    if version != FORMAT:
        other = "an older" if version < FORMAT else "a newer"
        raise RecipeError(
            f"{path} was written by {other} version of rayfed-kd: its format is {version}, this version "
            f"reads {FORMAT}. Formats hold other facts about clients and other names of "
            "state classes, so the run would not go on as it began. Resume it with the version that wrote "
            "it, or run its config.yaml again"
        )


def _lost_rows(facts: Mapping[str, Any], tables: Path) -> str | None:
    """Which table has fewer rows than when an intact checkpoint was written; None if none has."""
    on_disk = count_rows(tables, facts["round"])
    for name, rows in facts["rows"].items():
        if on_disk[name] < rows:
            return f"table {name} has {on_disk[name]} of {rows} rows until round {facts['round']}"
    return None


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
        messages = [publish(unpack(entry(place))) for place in tree["under_way"]["messages"]]
        return Snapshot(
            **{name: tree[name] for name in PLAIN if name in tree},
            server=unpack(packed(tree["server"]), device, keep_cpu=True, publish=publish, entries=slots),
            records=records,
            under_way=[_dispatch(stored, messages, records) for stored in tree["under_way"]["dispatches"]],
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
