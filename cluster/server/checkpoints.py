"""Checkpoints: a run's whole state, of which each writes what has changed. Loading executes no stored code.

`states-000010.log` holds client states, slots and messages under way. A checkpoint appends the new ones.
`round-000010.safetensors` holds the other arrays, and in its header the state's structure as JSON, with
places in the log. `round-000010.json` is written last: lengths and hashes of both, and the tables' numbers
of rows. The log is fsynced first; the others are written under a temporary name, fsynced and renamed. So a
kill at any moment leaves the checkpoint before it intact. A damaged checkpoint, or one whose rows the tables
lack, is recognised and reported, and the one before it is used. Those of other formats are refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save

from rayfed_kd.cluster.server.client_records import Records
from rayfed_kd.cluster.server.run_state import Snapshot
from rayfed_kd.cluster.server.stored.changes import Changes
from rayfed_kd.cluster.server.stored.loading import FORMAT, PLAIN, checkpoint_fault, load_snapshot
from rayfed_kd.errors import DataError
from rayfed_kd.files.whole import (
    atomic_write,
    flush_to_disk,
    make_folder,
    new_hash,
    read_json,
    remove_unfinished,
)
from rayfed_kd.protocol import Array
from rayfed_kd.protocol.state_packing import pack
from rayfed_kd.protocol.state_unpacking import Publish
from rayfed_kd.recipe.sections.safety import CheckpointRecipe

Tell = Callable[[str], None]


class Checkpointer:
    """Writes and reads a run's checkpoints.

    Args:
        folder: the run's folder; checkpoints are in its subfolder `checkpoints`.
        recipe: the interval between checkpoints, and how many are kept.
        flush: called with a checkpoint's round before that is written. It brings to disk all that the run
            recorded so far, and gives how many rows each table has of rounds up to this one.

    Attributes:
        recipe: as given.
        saved_at: second of `time.monotonic()` of the last checkpoint, or of the start.
    """

    def __init__(
        self,
        folder: Path,
        recipe: CheckpointRecipe,
        flush: Callable[[int], Mapping[str, int]] = lambda until_round: {},
    ) -> None:
        self._folder, self.recipe, self._flush = folder / "checkpoints", recipe, flush
        self.saved_at = time.monotonic()
        # Of this process's checkpoints; None: the next one writes everything.
        self._changes: Changes | None = None

    def save(self, snapshot: Snapshot) -> None:
        """Write a checkpoint, and delete all but the newest `keep`.

        Raises: RunError naming the object in the server's state that cannot be stored; OSError if the
            folder cannot be written.
        """
        # First, as the note promises these rows: without them on disk the checkpoint would be refused.
        rows = dict(self._flush(snapshot.round))
        make_folder(self._folder)
        if self._changes is None or self._changes.worn:
            self._changes = Changes(self._new_log(snapshot.round))
        changes = self._changes
        try:
            self._write(snapshot, rows, changes)
        except BaseException:  # Ctrl-C, too: what the next checkpoint may refer to is no longer known
            self._changes = None
            # The note may be there already, where Ctrl-C came after it.
            noted = [_log_of(note) for note in self._notes()]
            changes.log.abandon(
                max((size for name, size in noted if name == changes.log.path.name), default=0)
            )
            raise
        changes.written()
        if isinstance(snapshot.records, Records):
            snapshot.records.changed.clear()
        self.saved_at = time.monotonic()
        self._remove_old()

    def _write(self, snapshot: Snapshot, rows: Mapping[str, int], changes: Changes) -> None:
        arrays: dict[str, Array] = {"records": changes.records(snapshot.records)}
        server = pack(snapshot.server, changes.slots)
        names = [f"{number:06d}" for number in range(len(server.arrays))]
        for name, array in zip(names, server.arrays, strict=True):
            # A 0-dimensional array would come back from ascontiguousarray with one dimension.
            arrays[name] = np.ascontiguousarray(array).reshape(array.shape)
        under_way = changes.dispatches(snapshot.under_way)
        log = changes.log.flush()
        tree = {
            "format": FORMAT,
            **{name: getattr(snapshot, name) for name in PLAIN},
            "server": [server.structure, names],
            "log": None if log is None else log["name"],
            "base": changes.base,
            "under_way": under_way,
        }
        path = self._folder / f"round-{snapshot.round:06d}.safetensors"
        content = save(arrays, metadata={"tree": json.dumps(tree)})
        atomic_write(path, content)
        digest = new_hash(content).hexdigest()
        facts = {"round": snapshot.round, "bytes": len(content), "blake2b": digest, "rows": rows, "log": log}
        facts["asked_rounds"] = snapshot.asked_rounds
        # The note comes last: `latest` lists notes, so a kill before this line leaves no half checkpoint.
        atomic_write(path.with_suffix(".json"), json.dumps(facts))

    def _new_log(self, round_index: int) -> Path:
        """A file that is not there yet: a resumed run never appends to another process's."""
        path, count = self._folder / f"states-{round_index:06d}.log", 1
        while path.exists():
            count += 1
            path = path.with_stem(f"states-{round_index:06d}-{count}")
        return path

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
        return None if path is None else load_snapshot(path, publish, device)

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

    def end(self) -> None:
        """Bring to disk what was removed: no later checkpoint does so when the run is over."""
        if self._folder.is_dir():
            flush_to_disk(self._folder)

    def _remove_old(self) -> None:
        notes = self._notes()
        for old in notes[self.recipe.keep :]:
            old.unlink()  # the note first: a kill between the two leaves a file that nobody lists
            old.with_suffix(".safetensors").unlink(missing_ok=True)
        logs = {path.name for path in self._folder.glob("states-*.log")}
        if self._changes is not None:
            logs.discard(self._changes.log.path.name)
        # Read only if a log may go, which is seldom.
        for path in logs - {_log_of(note)[0] for note in notes[: self.recipe.keep]} if logs else ():
            (self._folder / path).unlink(missing_ok=True)

    def _notes(self) -> list[Path]:
        """The checkpoints' notes, newest first."""
        # By number: names sort as text only up to round 999,999, as they have six digits at least.
        return sorted(self._folder.glob("round-*.json"), key=_round_of, reverse=True)


def _round_of(note: Path) -> int:
    return int(note.stem.removeprefix("round-"))


def _log_of(note: Path) -> tuple[str | None, int]:
    """The name of the log that a checkpoint refers to, and its bytes then; None if there is none.

    A damaged note refers to none, as its checkpoint cannot be used.
    """
    try:
        log: Any = read_json(note).get("log")
        return (None, 0) if log is None else (str(log["name"]), int(log["bytes"]))
    except (DataError, KeyError, TypeError, ValueError):
        return None, 0
