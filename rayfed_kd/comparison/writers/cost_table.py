"""The table of costs: what each row sent, how long it took, and what it needed to reach the target."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.costs import AXES, MIB, AxisName
from rayfed_kd.comparison.differences import Row
from rayfed_kd.comparison.table_text import row_name

# Column -> the cost in `Cost`; with `raw_` before it in `RunTotals`, what that was without a codec.
SENT: Mapping[str, AxisName] = {"MiB up": "bytes_up", "MiB down": "bytes_down", "MiB": "bytes"}

# Other work only ever makes a run slower, so the fastest one says most of what the row itself takes.
FASTEST = "real s, fastest seed"


def cost_title(comparison: Comparison) -> str:
    """The sentence above the table, without its colon."""
    seeds = len(comparison.study.seeds)
    title = "Costs of a whole run, mean over seeds" if seeds > 1 else "Costs of a whole run"
    if not _has_codec(comparison):
        return title
    return f"{title}; without codec: the same parts as they are, and how many times as much that is"


def cost_header(comparison: Comparison) -> list[str]:
    """The column titles, the rows' names first."""
    columns = ["run", *SENT]
    if _has_codec(comparison):
        columns += [f"without codec: {name}" for name in SENT]
    if comparison.has_clock:
        columns.append("simulated s")
    if comparison.study.totals:
        columns.append(FASTEST)
    if comparison.study.target is not None:
        columns += [f"to target: {name}" for name in ("rounds", *_to_target(comparison))]
    return columns


def cost_cells(comparison: Comparison) -> list[list[str]]:
    """The rows below `cost_header`: one for each run, and where there is a target for each of its models."""
    if comparison.study.target is not None:
        return [
            [row_name(comparison, row), *_totals(comparison, row[0]), *_target_cells(comparison, row)]
            for row in comparison.rows
        ]
    return [[label, *_totals(comparison, label)] for label in comparison.study.labels]


def _totals(comparison: Comparison, label: str) -> list[str]:
    runs = list(comparison.seed_totals(label).values())
    sent = {name: [getattr(run.cost, name) / MIB for run in runs] for name in SENT.values()}
    line = [_mean_text(values) for values in sent.values()]
    if _has_codec(comparison):
        raw = {name: [getattr(run, f"raw_{name}") / MIB for run in runs] for name in sent}
        line += [_with_factor(raw[name], sent[name]) for name in sent]
    if comparison.has_clock:
        seconds = [run.cost.sim_s for run in runs if run.cost.sim_s is not None]
        line.append(f"{statistics.fmean(seconds):,.1f}" if seconds else "")
    if comparison.study.totals:
        line.append(f"{min(run.cost.wall_s for run in runs):,.1f}" if runs else "")
    return line


def _target_cells(comparison: Comparison, row: Row) -> list[str]:
    """Means over the seeds that reached the target; the rounds say how many did, if not all."""
    costs = comparison.costs(row)
    return [
        _rounds_text(costs["rounds"]),
        *(_target_text(costs[name], AXES[name].unit) for name in _to_target(comparison).values()),
    ]


def _to_target(comparison: Comparison) -> Mapping[str, AxisName]:
    return {**SENT, "simulated s": "sim_s"} if comparison.has_clock else SENT


def _has_codec(comparison: Comparison) -> bool:
    """Whether a codec changed the bytes of any run."""
    return any(totals.raw_bytes != totals.cost.bytes for totals in comparison.totals.values())


def _with_factor(raw: Sequence[float], sent: Sequence[float]) -> str:
    """Bytes without a codec, and in brackets how many times as much as what was sent, where they differ."""
    if not sum(sent) or sum(raw) == sum(sent):
        return _mean_text(raw)
    return f"{_mean_text(raw)} (x {sum(raw) / sum(sent):.3g})"


def _mean_text(values: Sequence[float]) -> str:
    return number_text(statistics.fmean(values)) if values else ""


def _rounds_text(rounds: Sequence[float | None]) -> str:
    reached = [index for index in rounds if index is not None]
    if not reached:
        return "not reached" if rounds else ""
    mean = f"{statistics.fmean(reached):.1f}"
    return mean if len(reached) == len(rounds) else f"{mean} ({len(reached)} of {len(rounds)} seeds)"


def _target_text(costs: Sequence[float | None], unit: float) -> str:
    reached = [cost / unit for cost in costs if cost is not None]
    if not reached:
        return ""
    mean = statistics.fmean(reached)
    return number_text(mean) if unit == MIB else f"{mean:,.1f}"


def number_text(value: float) -> str:
    """MiB with about three digits: small models send thousandths of one, large ones thousands.

    Args:
        value: at least 0.
    """
    if value >= 100:
        return f"{value:,.1f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"
