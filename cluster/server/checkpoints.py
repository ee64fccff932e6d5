"""Checkpoints: a run's whole state in one file. Loading it executes no stored code, as a pickle would.

`round-000010.safetensors` holds every array, and in its header the state's structure as JSON.
`round-000010.json` is written last and holds the file's length and hash, and the tables' numbers of rows.
Both are written under a temporary name, fsynced and renamed, so a kill at any moment leaves the checkpoint
before it intact. A damaged checkpoint, or one whose rows the tables lack, is recognised and reported, and the
one before it is used. A checkpoint of another format version is refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from cluster.engine.calls import StepCall
from cluster.server.checkpoint_faults import FORMAT, checkpoint_digest, checkpoint_fault
from cluster.server.client_records import ClientRecord
from cluster.server.event_queue import Dispatch
from rayfed_kd.files import atomic_write, remove_unfinished, tensors_written_aside
from rayfed_kd.protocol import Array, DispatchFacts, Handle
from rayfed_kd.protocol.state_packing import Packed, Publish, pack, unpack
from rayfed_kd.recipe.sections.safety import CheckpointRecipe

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Snapshot:
    """A run's state between two rounds.

    Attributes:
        round: the last completed round; 0 before the first.
        server: the method's server state.
        records: client id -> its record, for every client that was dispatched.
        wall_s: real seconds of work until then.
        now: simulated seconds until then.
        draws, dispatches: client samplings and dispatches until then.
        under_way: dispatches without a reply yet; their replies belong to later rounds.
        privacy: what `PrivacyAccount.stored` gives; None without `privacy`.
    """

    round: int
    server: Any
    records: Mapping[int, ClientRecord]
    wall_s: float
    now: float = 0.0
    draws: int = 0
    dispatches: int = 0
    under_way: Sequence[Dispatch] = ()
    privacy: Mapping[str, Any] | None = None


def _no_tables(until_round: int) -> Mapping[str, int]:
    return {}


class Checkpointer:
    """Writes and reads a run's checkpoints.

    Args:
        folder: the run's folder; checkpoints are in its subfolder `checkpoints`.
        recipe: the interval between checkpoints, and how many are kept.
        flush: called with a checkpoint's round before that is written. It brings to disk all that the run
            recorded so far, and gives how many rows each table has of rounds up to this one.
    """

    def __init__(
        self, folder: Path, recipe: CheckpointRecipe, flush: Callable[[int], Mapping[str, int]] = _no_tables
    ) -> None:
        self._folder, self._recipe, self._flush = folder / "checkpoints", recipe, flush
        self._last = time.monotonic()

    def due(self, round_index: int) -> bool:
        """Whether a checkpoint is due after this round, by `checkpoint.every` or `checkpoint.minutes`."""
        every, minutes = self._recipe.every, self._recipe.minutes
        by_rounds = every is not None and round_index % every == 0
        return by_rounds or (minutes is not None and time.monotonic() - self._last >= 60 * minutes)

    def save(self, snapshot: Snapshot) -> None:
        """Write a checkpoint, and delete all but the newest `keep`.

        Raises: RunError naming the object in the server's state that cannot be stored; OSError if the
            folder cannot be written.
        """
        # First, as the note promises these rows: without them on disk the checkpoint would be refused.
        rows = dict(self._flush(snapshot.round))
        self._folder.mkdir(exist_ok=True)
        arrays = _Arrays()
        tree = {
            "format": FORMAT,
            "round": snapshot.round,
            "wall_s": snapshot.wall_s,
            "server": arrays.stored(pack(snapshot.server)),
            "records": [
                arrays.stored_record(client, record) for client, record in sorted(snapshot.records.items())
            ],
            "now": snapshot.now,
            "draws": snapshot.draws,
            "dispatches": snapshot.dispatches,
            "privacy": snapshot.privacy,
            "under_way": arrays.stored_dispatches(snapshot.under_way),
        }
        path = self._folder / f"round-{snapshot.round:06d}.safetensors"
        with tensors_written_aside(path) as aside:
            save_file(arrays.by_name or {"none": np.zeros(0)}, aside, metadata={"tree": json.dumps(tree)})
            # Of the file under its temporary name: what is renamed afterwards is what was hashed.
            size, digest = aside.stat().st_size, checkpoint_digest(aside)
        facts = {"round": snapshot.round, "bytes": size, "blake2b": digest, "rows": rows}
        # The note comes last: `latest` lists notes, so a kill before this line leaves no half checkpoint.
        atomic_write(path.with_suffix(".json"), json.dumps(facts))
        self._last = time.monotonic()
        self._remove_old()

    def latest(
        self, publish: Publish, device: torch.device | str, tell: Tell, tables: Path | None = None
    ) -> Snapshot | None:
        """Load the newest usable checkpoint; None if there is none.

        Args:
            publish: makes client states and slots readable by the hosts again.
            device: where the server's tensors go that were not on the CPU.
            tell, tables: as in `newest`.
        Raises: RecipeError if another version of this project wrote it.
        """
        path = self.newest(tell, tables)
        return None if path is None else _load(path, publish, device)

    def newest(self, tell: Tell, tables: Path | None = None) -> Path | None:
        """Find the newest usable checkpoint's file; None if there is none.

        Args:
            tell: called with a line for each checkpoint that is passed over.
            tables: the run's folder of tables. A checkpoint is passed over if they lack rows that they had
                when it was written: the run's rounds would have a gap. None: they are not looked at.
        Raises: RecipeError if another version of this project wrote it.
        """
        faults: list[str] = []
        for note in self._notes():
            path = note.with_suffix(".safetensors")
            fault = checkpoint_fault(note, path, tables)
            if fault is None:
                for earlier in faults:
                    tell(f"{earlier}; the one before it is used")
                return path
            faults.append(f"checkpoint {path.name} {fault}")
        for fault in faults:
            tell(fault)
        return None

    def tidy(self, round_index: int) -> None:
        """Remove unusable checkpoints of later rounds, those beyond `keep`, and what a killed process left.

        A damaged checkpoint of a later round would count among the newest `keep`, and a good one would be
        deleted instead.

        Args:
            round_index: the round of the checkpoint that the run continues from; 0: the run begins again.
        """
        for note in self._notes():
            if _round_of(note) > round_index:
                note.unlink()
        for path in self._folder.glob("round-*.safetensors"):
            if not path.with_suffix(".json").exists():
                path.unlink()
        self._remove_old()
        remove_unfinished(self._folder)

    def _remove_old(self) -> None:
        for old in self._notes()[self._recipe.keep :]:
            old.unlink()  # the note first: a kill between the two leaves a file that nobody lists
            old.with_suffix(".safetensors").unlink(missing_ok=True)

    def _notes(self) -> list[Path]:
        """The checkpoints' notes, newest first."""
        # By number: names sort as text only up to round 999,999, as they have six digits at least.
        return sorted(self._folder.glob("round-*.json"), key=_round_of, reverse=True)


class _Arrays:
    """Collects the arrays of a checkpoint's file. Their names are numbers, in the order of collection."""

    def __init__(self) -> None:
        self.by_name: dict[str, Array] = {}

    def stored(self, packed: Packed) -> list[Any]:
        """A packed state as JSON: its structure, and the names of its arrays."""
        names = []
        for array in packed.arrays:
            names.append(f"{len(self.by_name):06d}")
            # A 0-dimensional array would come back from ascontiguousarray with one dimension.
            self.by_name[names[-1]] = np.ascontiguousarray(array).reshape(array.shape)
        return [packed.structure, names]

    def stored_record(self, client: int, record: ClientRecord) -> list[Any]:
        """A client's record as JSON."""
        packed = None if record.state is None else record.state.resolve()["state"]
        # A client that keeps no state has a handle all the same: only before its first reply it has none.
        state = None if record.state is None else self.stored(packed or pack(None))
        return [client, record.participations, record.version, record.exchange, state]

    def stored_dispatches(self, dispatches: Sequence[Dispatch]) -> dict[str, Any]:
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
        stored = [self.stored(pack(dict(message.resolve()))) for message in messages]
        return {"messages": stored, "dispatches": listed}


def _round_of(note: Path) -> int:
    return int(note.stem.removeprefix("round-"))


def _load(path: Path, publish: Publish, device: torch.device | str) -> Snapshot:
    with safe_open(path, framework="numpy") as file:

        def packed(stored: Sequence[Any]) -> Packed:
            structure, names = stored
            return Packed(structure, [file.get_tensor(name) for name in names])

        tree = json.loads(file.metadata()["tree"])
        records = {}
        for client, participations, version, exchange, state in tree["records"]:
            handle = None if state is None else publish({"state": packed(state)})
            records[client] = ClientRecord(participations, handle, version, exchange)
        # As they were sent, encoded: clients decode them, and so does the server to see what a late reply
        # changed.
        messages = [publish(unpack(packed(message))) for message in tree["under_way"]["messages"]]
        return Snapshot(
            round=tree["round"],
            server=unpack(packed(tree["server"]), device, keep_cpu=True, publish=publish),
            records=records,
            wall_s=tree["wall_s"],
            now=tree["now"],
            draws=tree["draws"],
            dispatches=tree["dispatches"],
            privacy=tree.get("privacy"),
            under_way=[_dispatch(one, messages, records) for one in tree["under_way"]["dispatches"]],
        )


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
