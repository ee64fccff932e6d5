"""A round's scalars, by the names under which trackers show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rayfed_kd.results.names import with_scores
from rayfed_kd.results.schemas import EPSILONS, GPU_COLUMNS

FEW_HOSTS = 16  # more hosts than this would fill TensorBoard's page with curves
ENDS = {"least": min, "most": max}


def round_scalars(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, float]:
    """A round's scalars: times, bytes, losses, metrics, privacy, hosts. Values that are None are left out.

    Args:
        tables: the round's rows, as `SCHEMAS` has them; of more than 16 hosts only the extremes are shown.
    """
    scalars = dict[str, float | None]()
    for row in tables.get("rounds", ()):
        scalars |= {_tag(name): value for name, value in row.items() if name not in ("round", "losses")}
        scalars |= {f"loss/{name}": value for name, value in dict(row["losses"] or {}).items()}
    for row in tables.get("privacy", ()):
        scalars |= {f"privacy/{name}": row[name] for name in (*EPSILONS, "clip")}
    for row in with_scores(tables):
        values = {name: value for name, value in row.items() if name not in ("round", "sim_s", "model")}
        scalars |= {f"{name}/{row['model']}": value for name, value in values.items()}
    scalars |= _host_scalars(tables.get("hosts", ()))
    return {tag: value for tag, value in scalars.items() if value is not None}


def _tag(column: str) -> str:
    """The name of a column of the table `rounds`, as time/wall_s, bytes/up and round/cohort."""
    if column.startswith("bytes_"):
        return column.replace("_", "/")
    return f"{'time' if column.endswith('_s') else 'round'}/{column}"


def _host_scalars(hosts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What the hosts measured: it shows idle hosts and GPUs, and leaks. Of many, only the extremes."""
    scalars: dict[str, float] = {}
    for column in ("rss_mb", "gpu_mb", "busy_s", *GPU_COLUMNS):
        # A column that a host cannot measure is null: it has no curve rather than one of zeros.
        values = {row["host"]: float(row[column]) for row in hosts if row.get(column) is not None}
        if values:
            scalars |= {f"hosts/{column}/{end}": of(values.values()) for end, of in ENDS.items()}
        if len(values) <= FEW_HOSTS:
            scalars |= {f"hosts/{column}/{host}": value for host, value in values.items()}
    return scalars
