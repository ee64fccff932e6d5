"""The section about differential privacy: epsilon by round, and what it is an epsilon of."""

from __future__ import annotations

from collections.abc import Sequence

from rayfed_kd.reporting.pictures import lines_picture
from rayfed_kd.reporting.reading import Run
from rayfed_kd.reporting.sections import Section
from rayfed_kd.results.charts.lines import Line
from rayfed_kd.results.schemas import EPSILONS, NOT_COVERED
from rayfed_kd.results.screen_table import TextTable

HEADER = (
    "run",
    "neighbours",
    "noise",
    "sampling",
    "accountant",
    "epsilon",
    "local epsilon",
    "delta",
    "noise multiplier",
    "clip",
    "row clip",
    "releases",
)
COLUMNS = (*EPSILONS, "delta", "noise_multiplier", "clip", "row_clip", "releases")


def privacy_section(runs: Sequence[Run]) -> Section | None:
    """Each run's epsilon after its last round, and by round; None if no run has `privacy`."""
    rows, lines, looks = [], list[Line](), dict[str, int]()
    for run in runs:
        spent = run.tables["privacy"].to_pylist()
        if not spent:
            continue
        last = spent[-1]
        words = [str(last[name]) for name in ("neighbours", "noise", "sampling", "accountant")]
        shown = ["" if last[name] is None else f"{last[name]:.6g}" for name in COLUMNS]
        rows.append((run.label, *words, *shown))
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
    picture = lines_picture("Epsilon by round", lines, "round", "A line per run, by round")
    return Section("Privacy", notes, [TextTable("Privacy", HEADER, rows, left=5)], looks, [picture])
