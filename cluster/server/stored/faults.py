"""Whether a checkpoint on disk can be used: it is whole, of this format, and the tables reach its round."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from rayfed_kd.cluster.server.stored.appended import appended_fault
from rayfed_kd.errors import RecipeError
from rayfed_kd.results.tables import count_rows

# Raised whenever what is stored means something else: 3 has every client's `exchange`, states as `pack` gives
# them, and today's names of the state classes, which moved into rooms; 4 has the tables' numbers of rows; 5
# has client states, slots and messages in a log.
FORMAT = 5


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
        if checkpoint_digest(path) != facts["blake2b"]:
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


def checkpoint_digest(path: Path) -> str:
    """The BLAKE2b hash of a file, 16 bytes as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
