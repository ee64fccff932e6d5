"""Sections about what runs cost: bytes, epsilon by round, seconds, hosts, and faults on the way."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from rayfed_kd.comparison.curves import MIB
from rayfed_kd.reporting.reading import Run
from rayfed_kd.reporting.sections import PANEL, SERIES, Section, lines_picture, panel
from rayfed_kd.results.charts.bars import draw_bars, draw_phases
from rayfed_kd.results.charts.lines import Line
from rayfed_kd.results.schemas import EPSILONS, NOT_COVERED
from rayfed_kd.results.screen_table import TextTable

PROMISE = ("neighbours", "noise", "sampling", "accountant")
COLUMNS = (*EPSILONS, "delta", "noise_multiplier", "clip", "row_clip", "releases")


def privacy_section(runs: Sequence[Run]) -> Section | None:
    """Each run's epsilon after its last round, and by round; None if no run has `privacy`."""
    rows, lines, looks = [], list[Line](), dict[str, int]()
    for run in runs:
        spent = run.tables["privacy"].to_pylist()
        if not spent:
            continue
        last = spent[-1]
        words = [str(last[name]) for name in PROMISE]
        cells = ["" if last[name] is None else f"{last[name]:.6g}" for name in COLUMNS]
        rows.append((run.label, *words, *cells))
        for name in EPSILONS:
            if last[name] is not None:
                look = looks.setdefault(f"{run.group}, {name.replace('_', ' ')}", len(looks))
                lines.append(Line(look, [row["round"] for row in spent], [row[name] for row in spent]))
    if not rows:
        return None
    notes = [
        "Client level: epsilon bounds what an observer learns of one client's data, all of it.",
        "With noise at the server, epsilon is that of an observer of the models that it sends. With noise at "
        "clients it holds for a server that sees only sums (secure aggregation), and the local epsilon for "
        "one that sees each message. Evaluation on clients' test samples has no noise.",
        f"{NOT_COVERED[0].upper()}{NOT_COVERED[1:]}.",
    ]
    header = ["run", *(name.replace("_", " ") for name in (*PROMISE, *COLUMNS))]
    picture = lines_picture("Epsilon by round", lines, "round", "A line per run, by round")
    return Section("Privacy", notes, [TextTable("Privacy", header, rows, left=5)], looks, [picture])


PHASES = {"dispatch": "dispatch_s", "clients": "client_s", "server": "server_s", "evaluation": "evaluate_s"}
MOST_HOSTS = 14  # hosts that have a colour each


def bytes_section(runs: Sequence[Run]) -> Section | None:
    """Bytes that were sent, by kind and direction; None if no run has messages."""
    rows, bars, looks, coded = list[Sequence[str]](), dict[str, dict[int, float]](), dict[str, int](), False
    for run in runs:
        grouped = run.tables["messages"].group_by(["kind", "direction"])
        sums = grouped.aggregate([("bytes", "sum"), ("raw_bytes", "sum"), ("parts", "sum")])
        traffic = sorted(sums.to_pylist(), key=lambda row: (row["kind"], row["direction"]))
        rounds = max(run.tables["rounds"].num_rows, 1)
        if traffic:
            bars |= {f"{run.label}, {direction}": {} for direction in ("up", "down")}
        for row in traffic:
            total, look = row["bytes_sum"], looks.setdefault(row["kind"], len(looks))
            cells = (
                f"{total:,}",
                f"{total / MIB:,.2f}",
                f"{total / rounds / MIB:,.3f}",
                f"{row['parts_sum']:,}",
                f"{row['raw_bytes_sum'] / MIB:,.2f}",
            )
            coded = coded or row["raw_bytes_sum"] != total
            rows.append((run.label, row["kind"], row["direction"], *cells))
            bars[f"{run.label}, {row['direction']}"][look] = total / MIB
    if not rows:
        return None
    header = ["run", "kind", "direction", "bytes", "MiB", "MiB a round", "parts", "MiB without codec"]
    shown_rows = rows if coded else [row[:-1] for row in rows]
    title = "MiB by run and direction, kinds side by side"
    draw = partial(draw_bars, bars=bars, unit="MiB", palette=SERIES)
    picture = panel(title, "The table below in bars", draw, (PANEL[0], 1.0 + 0.46 * len(bars)))
    table = TextTable("Bytes by kind and direction", header[: len(shown_rows[0])], shown_rows, left=3)
    return Section("Bytes", (), [table], looks, [picture])


def time_section(runs: Sequence[Run]) -> Section | None:
    """Real seconds by phase and by round; None if no run has a finished round."""
    rows, pictures = [], []
    for run in (run for run in runs if run.tables["rounds"].num_rows):
        table = run.tables["rounds"]
        phases = {name: [s or 0.0 for s in table[column].to_pylist()] for name, column in PHASES.items()}
        sums, wall_s = [sum(seconds) for seconds in phases.values()], run.summary["wall_s"]
        sim_s = run.summary["sim_s"]
        cells = [f"{value:,.2f}" for value in (wall_s, *sums, wall_s - sum(sums))]
        rows.append((run.label, str(table.num_rows), *cells, "" if sim_s is None else f"{sim_s:,.1f}"))
        indices, seconds = table["round"].to_pylist(), list(phases.values())
        draw = partial(draw_phases, rounds=indices, phases=seconds, palette=SERIES)
        pictures.append(panel(run.label, f"Stacked by round: {', '.join(phases)}", draw))
    if not rows:
        return None
    header = ["run", "rounds", "all", *PHASES, "rest", "simulated"]
    if not any(row[-1] for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    looks = {name: look for look, name in enumerate(PHASES)}
    note = "Real seconds; the rest lies between rounds: tables, checkpoints. Pictures: seconds of each round."
    return Section("Time by phase", [note], [TextTable("Seconds", header, rows)], looks, pictures)


def hosts_section(runs: Sequence[Run]) -> Section | None:
    """Work and memory of the client hosts; None if no run has any."""
    rows = list[Sequence[str]]()
    memory, busy, looks = list[Line](), list[Line](), dict[str, int]()
    apart = sum(len(set(run.tables["hosts"]["host"].to_pylist())) for run in runs) <= MOST_HOSTS
    for run in runs:
        host_rows = run.tables["hosts"].to_pylist()
        for host in sorted({row["host"] for row in host_rows}):
            # Of many hosts a legend would be longer than its pictures: they share their row's colour.
            name = f"host {host}" if len(runs) == 1 else f"{run.group}, host {host}"
            look = looks.setdefault(name if apart else run.group, len(looks))
            rounds_of_host = [row for row in host_rows if row["host"] == host]
            rounds = [row["round"] for row in rounds_of_host]
            busy_s = sum(row["busy_s"] for row in rounds_of_host)
            cells = [f"{busy_s:,.2f}", f"{100 * busy_s / max(run.summary['wall_s'], 1e-9):.1f}"]
            cells.append(f"{max(row['rss_mb'] or 0.0 for row in rounds_of_host):,.0f}")
            nodes = ", ".join(sorted({row["node"] for row in rounds_of_host}))
            tasks = f"{sum(row['clients'] for row in rounds_of_host):,}"
            rows.append((run.label, str(host), nodes, str(len(rounds_of_host)), tasks, *cells))
            memory.append(Line(look, rounds, [row["rss_mb"] or 0.0 for row in rounds_of_host]))
            busy.append(Line(look, rounds, [row["busy_s"] for row in rounds_of_host]))
    if not rows:
        return None
    header = ["run", "host", "node", "rounds", "client steps", "busy s", "busy %", "most memory MB"]
    pictures = [
        lines_picture("Memory of client hosts, MB", memory, "round", "A line per host, by round"),
        lines_picture("Busy seconds of client hosts", busy, "round", "A line per host, by round"),
    ]
    legend = looks if len(looks) > 1 else {}
    return Section("Hosts", (), [TextTable("Client hosts", header, rows, left=3)], legend, pictures)


def faults_section(runs: Sequence[Run]) -> Section:
    """Dropped and late replies, and the rounds after which runs were resumed."""
    rows = []
    for run in runs:
        rounds = run.tables["rounds"].to_pylist()
        columns = ([row[name] or 0 for row in rounds] for name in ("cohort", "dropped", "staleness"))
        cohort, dropped, late = map(np.array, columns)
        used = cohort - dropped  # a round's mean counts once for each of its replies
        sums = (int(column.sum()) for column in (cohort, dropped, dropped > 0))
        resumed = ", ".join(map(str, run.resumed)) or "never"
        mean = late @ used / max(used.sum(), 1)
        rows.append((run.label, run.status, resumed, *map(str, sums), f"{mean:.3f}"))
    header = ("run", "status", "resumed after round", "cohort, sum", "replies dropped", "rounds with drops")
    note = (
        "Dropped: late, too stale, or faulty under faults.bad_replies: drop. A step that ran again because "
        "its host was lost gives the same result, and is not counted in the tables."
    )
    return Section("Faults", [note], [TextTable("Faults", (*header, "mean staleness"), rows, left=3)])
