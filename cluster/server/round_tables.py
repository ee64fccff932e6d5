"""A round's rows for the tables of rounds and hosts."""

from __future__ import annotations

import statistics
from typing import Any

from cluster.server.traffic import Traffic
from rayfed_kd.protocol import ServerContext

Rows = list[dict[str, Any]]


def _round_row(round_index: int, traffic: Traffic, ctx: ServerContext) -> dict[str, Any]:
    sums: dict[str, list[float]] = {}
    # In client order, so that the sums have the same bits in whatever order the replies arrived.
    clients = [facts.logged for _, facts in sorted(traffic.facts, key=lambda entry: entry[0])]
    for logged in (*clients, ctx.logged()):
        for name, (value, count) in logged.items():
            entry = sums.setdefault(name, [0.0, 0])
            entry[0] += value
            entry[1] += count
    return {
        "round": round_index,
        "bytes_up": traffic.ledger.total("up"),
        "bytes_down": traffic.ledger.total("down"),
        "cohort": traffic.cohort,
        "dropped": traffic.dropped,
        "staleness": statistics.fmean(traffic.staleness) if traffic.staleness else 0.0,
        "losses": {name: value / count for name, (value, count) in sums.items()},
    }


def _host_rows(round_index: int, traffic: Traffic) -> Rows:
    rows: dict[int, dict[str, Any]] = {}
    for _, facts in traffic.facts:
        first = {"round": round_index, "host": facts.host, "node": facts.node, "busy_s": 0.0, "clients": 0}
        row = rows.setdefault(facts.host, first)
        row["busy_s"] += facts.seconds
        row["clients"] += 1
        # The memory after the host's last step of the round.
        row["rss_mb"], row["gpu_mb"] = facts.rss_mb, facts.gpu_mb
    return [rows[host] for host in sorted(rows)]
