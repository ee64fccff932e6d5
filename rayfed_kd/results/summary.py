"""A run in one small file: summary.json, made of the run's tables when the run ends."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute

from rayfed_kd.errors import counted, shown
from rayfed_kd.results.schemas import NOT_COVERED
from rayfed_kd.results.scores import is_score, with_scores

METRICS = ("amp", "fm", "wlp", "ua", "server_accuracy")
SMALLER_IS_BETTER = ("fm",)
# What a model is judged by: the first of these metrics that it has.
HEADLINES = ("server_accuracy", "amp", "ua")
DIVERGED = "finished, but diverged"  # the status of a run whose last round has NaN or infinite values
LAST = 10  # evaluations that the mean of the last is over, as in the papers' tables


def most_common_headline(metrics: Sequence[str]) -> str:
    """The metric of `HEADLINES` that stands there most often, of equal ones the first.

    Clients' own models have no official test, and should not be missing beside a server's.

    Args:
        metrics: one for each row that has it.
    """
    return max(HEADLINES, key=metrics.count)


def summarise(
    tables: Mapping[str, pa.Table], status: str, clients: int, drawn: int | None = None
) -> dict[str, Any]:
    """Summarise a run: rounds, seconds, bytes by kind, and every model's metrics.

    A value that is no finite number counts as none: JSON has no word for it, and no value would be better.

    Args:
        tables: rounds, metrics, scores, clients, messages and privacy, as `SCHEMAS` has them.
        status: finished, interrupted or failed.
        clients: the number of clients.
        drawn: how many of them were drawn for evaluation; None: all are evaluated.

    Returns: what summary.json holds: status, rounds, wall_s, sim_s (None without a clock), bytes (on
        the wire, also by kind, and by kind without codecs), clients, drawn_clients (as `drawn`),
        tested_clients (those with test samples; None if no client was tested), bad_replies (those left out by
        `faults.bad_replies: drop`), diverged (what in the last round is no finite number, a text each), and
        models. Each model has `last`, `best` and `last10` (the mean of the last ten evaluations) by metric,
        the number of its `evaluations`, and in how many of them metrics of the recipe's were `undefined`. All
        of `best` is of one round, `best_round`: the first in which `best_by` is largest, the model's first
        metric of `HEADLINES`. A run with `privacy` has an entry of that name: the last row of its table. The
        status of a finished run that has diverged is `DIVERGED`. The recorder adds `stopped`, a text, where
        the recipe's `stop` ended the run.
    """
    rounds = tables["rounds"].to_pylist()
    last = rounds[-1] if rounds else {}
    tested = pa.compute.count_distinct(tables["clients"]["client"]).as_py()
    metrics = with_scores({name: tables[name].to_pylist() for name in ("metrics", "scores")})
    diverged = list(_diverged(last, metrics))
    summary = {
        "status": DIVERGED if status == "finished" and diverged else status,
        "rounds": last.get("round", 0),
        "wall_s": last.get("wall_s", 0.0),
        "sim_s": last.get("sim_s"),
        "bytes": {
            "up": sum(row["bytes_up"] for row in rounds),
            "down": sum(row["bytes_down"] for row in rounds),
            "by_kind": bytes_by_kind(tables["messages"]),
            "raw_by_kind": bytes_by_kind(tables["messages"], "raw_bytes"),
        },
        "clients": clients,
        "drawn_clients": drawn,
        "tested_clients": tested or None,
        "bad_replies": sum(row.get("bad_replies") or 0 for row in rounds),
        "diverged": diverged,
        "models": _models(metrics),
    }
    spent = tables["privacy"].to_pylist() if "privacy" in tables else []
    return {**summary, "privacy": _privacy(spent[-1])} if spent else summary


def is_finished(summary: Mapping[str, Any]) -> bool:
    """Whether a run has made all its rounds, diverged or not; `summary` may be empty."""
    return summary.get("status") in ("finished", DIVERGED)


def _diverged(last: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What in the last round, and in the evaluation after it, is no finite number.

    Args:
        last: row of the table `rounds`; empty without a round.
        metrics: rows of the table `metrics`.
    """
    for name, value in dict(last.get("logged") or {}).items():
        if value is not None and not math.isfinite(value):
            yield f"{name} is {value} in round {last['round']}"
    for row in metrics:
        if row["round"] == last.get("round") and row.get("not_finite"):
            who = counted(row["not_finite"], "client")
            yield f"{row['model']} gives NaN or infinite values for {who} in round {row['round']}"


def _privacy(row: Mapping[str, Any]) -> dict[str, Any]:
    """The last row of the table `privacy`. An infinite epsilon is the text "inf", as JSON has no number."""
    return {"not_covered": NOT_COVERED} | {
        name: "inf" if value == math.inf else value
        for name, value in row.items()
        if name not in ("round", "sim_s")
    }


def bytes_by_kind(messages: pa.Table, column: str = "bytes") -> dict[str, dict[str, int]]:
    """What messages of each kind took in all: kind -> `up` and `down` -> bytes.

    Args:
        messages: the table of this name.
        column: `bytes`, or `raw_bytes` without a codec.
    """
    grouped = messages.group_by(["kind", "direction"]).aggregate([(column, "sum")]).to_pylist()
    kinds: dict[str, dict[str, int]] = {}
    for row in sorted(grouped, key=lambda row: (row["kind"], row["direction"])):
        kinds.setdefault(row["kind"], {"up": 0, "down": 0})[row["direction"]] = row[f"{column}_sum"]
    return kinds


def known_metric(name: str) -> str:
    """The name itself, if tables may have such a metric.

    Raises: ValueError
    """
    if name not in METRICS and not is_score(name):
        raise ValueError(
            f"{shown(name)} is no metric; there are {', '.join(METRICS)}, and official_NAME and local_NAME "
            "of metrics that recipes name"
        )
    return name


def shown_metrics(summary: Mapping[str, Any]) -> list[str]:
    """The metrics of a summary's models: those of every evaluation, then those that the recipe names.

    Args:
        summary: as `summarise` makes it.
    """
    names = dict.fromkeys(name for model in summary["models"].values() for name in model["last"])
    return [*METRICS, *(name for name in names if name not in METRICS)]


def _models(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    evaluations: dict[str, dict[int, dict[str, float | None]]] = {}  # model -> round -> metric -> value
    for row in rows:
        metrics = (*METRICS, *filter(is_score, row))
        values = {name: row[name] if math.isfinite(row[name] or 0.0) else None for name in metrics}
        evaluations.setdefault(row["model"], {})[row["round"]] = values
    return {name: _model(by_round) for name, by_round in evaluations.items()}


def _model(by_round: Mapping[int, Mapping[str, float | None]]) -> dict[str, Any]:
    evaluations = list(by_round.values())
    metrics = list(evaluations[-1])
    headline = next((m for m in HEADLINES if any(e[m] is not None for e in evaluations)), None)
    best_round = None
    if headline is not None:
        values = {index: value for index, e in by_round.items() if (value := e[headline]) is not None}
        best_round = max(values, key=values.__getitem__)  # of equal values the first
    missing = {name: sum(e.get(name) is None for e in evaluations) for name in filter(is_score, metrics)}
    return {
        "evaluations": len(evaluations),
        "undefined": {name: count for name, count in missing.items() if count},
        "last": evaluations[-1],
        "best": dict.fromkeys(metrics) if best_round is None else by_round[best_round],
        "best_round": best_round,
        "best_by": headline,
        f"last{LAST}": {metric: _mean(evaluations[-LAST:], metric) for metric in metrics},
    }


def _mean(evaluations: Sequence[Mapping[str, float | None]], metric: str) -> float | None:
    """The metric's mean over those evaluations that have a value (UA as FedD2S reports it)."""
    values = [value for evaluation in evaluations if (value := evaluation[metric]) is not None]
    return statistics.fmean(values) if values else None
