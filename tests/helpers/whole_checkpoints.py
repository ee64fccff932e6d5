"""Checkpoints as format 4 had them: a run's whole state in one file.

tree, arrays = whole(path)       # of a checkpoint of today: for comparisons, as it has no places in a log
rewrite_whole(path)              # the same state as an older version left it, for it to be resumed
"""

import hashlib
import json
from dataclasses import fields

import numpy as np
from safetensors.numpy import save_file

from cluster.engine.calls import Held
from cluster.server.stored.loading import load_snapshot
from rayfed_kd.protocol.state_packing import pack


def whole(path):
    """A checkpoint's structure and arrays, as format 4 stored them."""
    snapshot, arrays = load_snapshot(path, Held, "cpu"), {}

    def stored(packed):
        names = []
        for array in packed.arrays:
            names.append(f"{len(arrays):06d}")
            arrays[names[-1]] = np.ascontiguousarray(array).reshape(array.shape)
        return [packed.structure, names]

    server = stored(pack(snapshot.server))
    records = []
    for client, record in sorted(snapshot.records.items()):
        state = None if record.state is None else stored(record.state.resolve()["state"] or pack(None))
        records.append([client, record.participations, record.version, record.exchange, state])
    messages, listed = [], []
    for dispatch in snapshot.under_way:
        if dispatch.call.message not in messages:
            messages.append(dispatch.call.message)
        plain = {f.name: getattr(dispatch, f.name) for f in fields(dispatch) if f.name != "call"}
        facts = dispatch.call.facts
        call = {
            "step": dispatch.call.step,
            "facts": [facts.client, facts.round, facts.participation, facts.exchange],
            "message": messages.index(dispatch.call.message),
            "metadata": dict(dispatch.call.metadata),
        }
        listed.append({**plain, "elements": dict(dispatch.elements), "call": call})
    tree = {
        "format": 4,
        "round": snapshot.round,
        "wall_s": snapshot.wall_s,
        "server": server,
        "records": records,
        "now": snapshot.now,
        "draws": snapshot.draws,
        "dispatches": snapshot.dispatches,
        "privacy": snapshot.privacy,
        "under_way": {
            "messages": [stored(pack(dict(message.resolve()))) for message in messages],
            "dispatches": listed,
        },
    }
    return tree, arrays


def rewrite_whole(path):
    """Write a checkpoint in the form of format 4, with its note, in its place."""
    tree, arrays = whole(path)
    save_file(arrays or {"none": np.zeros(0)}, path, metadata={"tree": json.dumps(tree)})
    note = path.with_suffix(".json")
    content = path.read_bytes()
    facts = {
        "round": tree["round"],
        "bytes": len(content),
        "blake2b": hashlib.blake2b(content, digest_size=16).hexdigest(),
        "rows": json.loads(note.read_text())["rows"],
    }
    note.write_text(json.dumps(facts))
