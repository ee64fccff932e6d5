"""A checkpoint's whole state, for comparisons: without places in a log, which differ after a resumption.

tree, arrays = whole(path)
"""

from dataclasses import fields

import numpy as np

from rayfed_kd.cluster.engine.calls import Held
from rayfed_kd.cluster.server.stored.loading import load_snapshot
from rayfed_kd.protocol.state_packing import pack


def whole(path):
    """A checkpoint's structure and arrays."""
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
