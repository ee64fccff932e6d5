"""Checkpoints: a run's whole state in one file that is loaded without running anybody's code.

`round-000010.safetensors` holds every array, and in its header the state's structure as JSON;
`round-000010.json`, written last, says how long the file is and what it hashes to. Both are written aside,
fsynced and renamed, so a kill at any moment leaves the checkpoint before it. A damaged one is recognised,
told, and the one before it used.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from cluster.engine.calls import StepCall
from cluster.server.client_records import ClientRecord
from cluster.server.event_queue import Order
from rayfed_kd.errors import RunError
from rayfed_kd.protocol import Array, DispatchFacts, Handle, PartRef, to_array, to_tensor
from rayfed_kd.recipe.schema import CheckpointRecipe

FORMAT = 2
Publish = Callable[[Mapping[str, Array]], Handle]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Snapshot:
    """A run between two rounds.

    Attributes:
        round: the last one that is part of it.
        server: the method's server state.
        records: what is remembered of every client seen.
        wall_s: seconds of work until then.
        now: simulated seconds until then.
        draws, dispatches: how many there were.
        flying: dispatches under way, which belong to later rounds.
    """

    round: int
    server: Any
    records: Mapping[int, ClientRecord]
    wall_s: float
    now: float = 0.0
    draws: int = 0
    dispatches: int = 0
    flying: Sequence[Order] = ()


class Checkpointer:
    """Writes and reads a run's checkpoints.

    Args:
        folder: the run's folder; they lie in `checkpoints` below it.
        recipe: how often, and how many are kept.
    """

    def __init__(self, folder: Path, recipe: CheckpointRecipe) -> None:
        self._folder, self._recipe = folder / "checkpoints", recipe
        self._last = time.monotonic()

    def due(self, round_index: int) -> bool:
        """Whether this round ends with a checkpoint."""
        every, minutes = self._recipe.every, self._recipe.minutes
        by_rounds = every is not None and round_index % every == 0
        return by_rounds or (minutes is not None and time.monotonic() - self._last >= 60 * minutes)

    def save(self, snapshot: Snapshot) -> None:
        """Writes one; older ones than the last `keep` go.

        Raises: RunError naming what a state holds that cannot be written.
        """
        self._folder.mkdir(exist_ok=True)
        arrays: dict[str, Array] = {}
        tree = {
            "format": FORMAT,
            "round": snapshot.round,
            "wall_s": snapshot.wall_s,
            "server": encode(snapshot.server, arrays),
            "records": [
                [client, record.participations, record.version, _held(record.state, arrays)]
                for client, record in sorted(snapshot.records.items())
            ],
            "now": snapshot.now,
            "draws": snapshot.draws,
            "dispatches": snapshot.dispatches,
            "flying": _encoded_orders(snapshot.flying, arrays),
        }
        path = self._folder / f"round-{snapshot.round:06d}.safetensors"
        aside = path.with_name(f".{path.name}")
        try:
            save_file(arrays or {"none": np.zeros(0)}, aside, metadata={"tree": json.dumps(tree)})
        except SafetensorError as error:  # the disk's error, in a wrapping of its own
            aside.unlink(missing_ok=True)
            raise OSError(f"{path}: {error}") from None
        facts = {"round": snapshot.round, "bytes": aside.stat().st_size, "blake2b": _digest(aside)}
        _commit(aside, path)
        note = path.with_suffix(".json")
        note.with_name(f".{note.name}").write_text(json.dumps(facts), encoding="utf8")
        _commit(note.with_name(f".{note.name}"), note)
        self._last = time.monotonic()
        for old in self._notes()[self._recipe.keep :]:
            old.unlink()
            old.with_suffix(".safetensors").unlink(missing_ok=True)

    def latest(self, publish: Publish, device: torch.device | str, tell: Tell) -> Snapshot | None:
        """The newest whole checkpoint; None if there is none.

        Args:
            publish: makes client states and slots readable for hosts again.
            device: of the server's tensors that were not on the CPU.
            tell: called with a line for each damaged one.
        """
        for note in self._notes():
            path = note.with_suffix(".safetensors")
            fault = _fault(note, path)
            if fault is None:
                return _load(path, publish, device)
            tell(f"checkpoint {path.name} is damaged ({fault}); the one before it is used")
        return None

    def _notes(self) -> list[Path]:
        """Newest first."""
        return sorted(self._folder.glob("round-*.json"), reverse=True)


def encode(value: Any, arrays: dict[str, Array]) -> list[Any]:
    """A state as JSON, [kind, ...] at every place; its tensors go to `arrays`.

    Raises: RunError for what is neither a dataclass, a mapping, a sequence, a tensor nor a plain value.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return ["plain", value]
    if isinstance(value, torch.Tensor | np.ndarray | PartRef):
        return _encoded_leaf(value, arrays)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: encode(getattr(value, f.name), arrays) for f in dataclasses.fields(value)}
        return ["dataclass", _name(type(value)), fields]
    if isinstance(value, Mapping):
        return ["mapping", [[encode(k, arrays), encode(v, arrays)] for k, v in value.items()]]
    if isinstance(value, tuple | list):
        items = [encode(item, arrays) for item in value]
        return (
            ["named", _name(type(value)), items]
            if hasattr(value, "_fields")
            else [type(value).__name__, items]
        )
    raise RunError(
        f"a state holds a {type(value).__name__}, which a checkpoint cannot; expected dataclasses, mappings, "
        "sequences, tensors and plain values"
    )


def _encoded_leaf(value: Any, arrays: dict[str, Array]) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return ["tensor", _stored(to_array(value), arrays), value.device.type]
    if isinstance(value, PartRef):
        return ["part", _stored(value.handle.resolve()[value.name], arrays), value.name]
    return ["array", _stored(value, arrays)]


@dataclass(frozen=True)
class Decoder:
    """Turns what `encode` gave back into the state. One method per kind.

    Attributes:
        arrays: name -> array.
        publish: makes a slot's array readable for hosts again.
        device: of tensors that were not on the CPU.
    """

    arrays: Callable[[str], Array]
    publish: Publish
    device: torch.device | str

    def decode(self, tree: Sequence[Any]) -> Any:
        """The state."""
        kind, *content = tree
        return getattr(self, f"_{kind}")(*content)

    def _plain(self, value: Any) -> Any:
        return value

    def _tensor(self, name: str, device: str) -> torch.Tensor:
        return to_tensor(self.arrays(name), "cpu" if device == "cpu" else self.device)

    def _array(self, name: str) -> Array:
        return self.arrays(name)

    def _part(self, array: str, name: str) -> PartRef:
        return PartRef(self.publish({name: self.arrays(array)}), name)

    def _dataclass(self, kind: str, fields: Mapping[str, Any]) -> Any:
        return _class(kind)(**{name: self.decode(value) for name, value in fields.items()})

    def _mapping(self, items: Sequence[Any]) -> dict[Any, Any]:
        return {self.decode(key): self.decode(value) for key, value in items}

    def _tuple(self, items: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(self._list(items))

    def _list(self, items: Sequence[Any]) -> list[Any]:
        return [self.decode(item) for item in items]

    def _named(self, kind: str, items: Sequence[Any]) -> Any:
        return _class(kind)(*self._list(items))


def _load(path: Path, publish: Publish, device: torch.device | str) -> Snapshot:
    with safe_open(path, framework="numpy") as file:
        tree = json.loads(file.metadata()["tree"])
        decoder = Decoder(file.get_tensor, publish, device)
        records = {}
        for client, participations, version, state in tree["records"]:
            handle = None if state is None else publish({"state": decoder.decode(state)})
            records[client] = ClientRecord(participations, handle, version)
        return Snapshot(
            round=tree["round"],
            server=decoder.decode(tree["server"]),
            records=records,
            wall_s=tree["wall_s"],
            now=tree["now"],
            draws=tree["draws"],
            dispatches=tree["dispatches"],
            flying=_decoded_orders(tree["flying"], decoder, records),
        )


def _encoded_orders(orders: Sequence[Order], arrays: dict[str, Array]) -> dict[str, Any]:
    """Dispatches under way; a message that several answer is stored once, their states are the records'."""
    messages: list[Handle] = []
    listed = []
    for order in orders:
        facts, message = order.call.facts, order.call.message
        if message not in messages:
            messages.append(message)
        plain = {f.name: getattr(order, f.name) for f in dataclasses.fields(order) if f.name != "call"}
        call = {
            "step": order.call.step,
            "facts": [facts.client, facts.round, facts.participation, facts.exchange],
            "message": messages.index(message),
            "metadata": dict(order.call.metadata),
        }
        listed.append({**plain, "sizes": dict(order.sizes), "call": call})
    return {"messages": [encode(dict(m.resolve()), arrays) for m in messages], "orders": listed}


def _decoded_orders(
    tree: Mapping[str, Any], decoder: Decoder, records: Mapping[int, ClientRecord]
) -> list[Order]:
    messages = [decoder.publish(decoder.decode(message)) for message in tree["messages"]]
    orders = []
    for fields in tree["orders"]:
        call, facts = fields["call"], DispatchFacts(*fields["call"]["facts"])
        record = records[facts.client]
        step = StepCall(
            step=call["step"],
            facts=facts,
            message=messages[call["message"]],
            metadata=call["metadata"],
            state=record.state,
            state_version=record.version,
            number=fields["number"],
        )
        orders.append(Order(**{**fields, "call": step}))
    return orders


def _held(handle: Handle | None, arrays: dict[str, Array]) -> Any:
    return None if handle is None else encode(handle.resolve()["state"], arrays)


def _stored(array: Array, arrays: dict[str, Array]) -> str:
    name = f"{len(arrays):06d}"
    arrays[name] = np.ascontiguousarray(array).reshape(array.shape)
    return name


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _class(name: str) -> Any:
    """A class by name, of a module that the method has loaded already: nothing is imported for a file."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and (dataclasses.is_dataclass(found) or issubclass(found, tuple))):
        raise RunError(f"the checkpoint holds a {name}, which this version does not have")
    return found


def _fault(note: Path, path: Path) -> str | None:
    """What is wrong with a checkpoint; None if it is whole."""
    try:
        facts = json.loads(note.read_text(encoding="utf8"))
        if path.stat().st_size != facts["bytes"]:
            return f"{path.stat().st_size} bytes for {facts['bytes']}"
        if _digest(path) != facts["blake2b"]:
            return "its checksum is another"
        with safe_open(path, framework="numpy") as file:
            found = json.loads(file.metadata()["tree"])["format"]
        return None if found == FORMAT else f"format {found} for {FORMAT}"
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        return f"{type(error).__name__}: {error}"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _commit(aside: Path, path: Path) -> None:
    """fsync, rename, fsync the folder: after a power cut the name stands for the whole content."""
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    aside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
