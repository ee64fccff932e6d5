"""A run in one small file: summary.json."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

METRICS = ("amp", "fm", "wlp", "ua", "server_accuracy")
SMALLER_IS_BETTER = ("fm",)
LAST = 10


def summarise(tables: Mapping[str, pa.Table], status: str) -> dict[str, Any]:
    """Rounds, seconds, bytes by kind; per model every metric's last and best value and mean of the last ten.

    A value that is no finite number counts as none: JSON has no word for it, and nothing would beat it.

    Args:
        tables: rounds, metrics and messages.
        status: finished, interrupted or failed.
    """
    rounds = tables["rounds"].to_pylist()
    last = rounds[-1] if rounds else {}
    return {
        "status": status,
        "rounds": last.get("round", 0),
        "wall_s": last.get("wall_s", 0.0),
        "sim_s": last.get("sim_s"),
        "bytes": {
            "up": sum(row["bytes_up"] for row in rounds),
            "down": sum(row["bytes_down"] for row in rounds),
            "by_kind": _by_kind(tables["messages"]),
        },
        "models": _models(tables["metrics"].to_pylist()),
    }


def _by_kind(messages: pa.Table) -> dict[str, dict[str, int]]:
    grouped = messages.group_by(["kind", "direction"]).aggregate([("bytes", "sum")]).to_pylist()
    kinds: dict[str, dict[str, int]] = {}
    for row in sorted(grouped, key=lambda row: (row["kind"], row["direction"])):
        kinds.setdefault(row["kind"], {"up": 0, "down": 0})[row["direction"]] = row["bytes_sum"]
    return kinds


def _models(rows: list[dict[str, Any]]) -> dict[str, Any]:
    models: dict[str, Any] = {}
    values: dict[str, list[dict[str, float | None]]] = {}
    for row in rows:
        found = models.setdefault(
            row["model"], {"last": {}, "best": dict.fromkeys(METRICS), "best_round": {}}
        )
        found["last"] = {metric: _finite(row[metric]) for metric in METRICS}
        for metric, value in found["last"].items():
            if _better(metric, value, found["best"][metric]):
                found["best"][metric] = value
                found["best_round"][metric] = row["round"]
        values.setdefault(row["model"], []).append(found["last"])
    for model, found in models.items():
        found[f"last{LAST}"] = {metric: _mean(values[model][-LAST:], metric) for metric in METRICS}
    return models


def _mean(evaluations: Sequence[Mapping[str, float | None]], metric: str) -> float | None:
    """Over the evaluations given, as far as they have a value (UA as FedD2S reports it)."""
    there = [value for evaluation in evaluations if (value := evaluation[metric]) is not None]
    return statistics.fmean(there) if there else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _better(metric: str, value: float | None, best: float | None) -> bool:
    if value is None or best is None:
        return value is not None
    return value < best if metric in SMALLER_IS_BETTER else value > best
