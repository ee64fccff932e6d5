"""A search with Ray Tune: what was searched, every trial, and the metric against the coefficients."""

from __future__ import annotations

from matplotlib.axes import Axes

from rayfed_kd.report.parts import Section, Table
from rayfed_kd.report.pictures import PANEL, SERIES, Line, Picture, lines_picture, panel
from rayfed_kd.tuning.figures import CoefficientAxis, draw_parallel, draw_scatter
from rayfed_kd.tuning.findings import Found
from rayfed_kd.tuning.spaces import shown

# The looks that `draw_scatter` draws with.
TRIALS, FAILED, BEST = 0, 1, 2


def search_section(found: Found) -> Section:
    """One search."""
    best = found.best
    finished, stopped = (sum(row.status == s for row in found.rows) for s in ("finished", "stopped"))
    failures = _failures(found)
    seconds = sum(row.seconds for row in found.rows)
    notes = [
        f"{found.metric}, {found.how}: {len(found.rows)} trials, {finished} finished, "
        f"{stopped} stopped early; {seconds:.0f} s in rounds, all trials together. "
        "Hollow points and dashed lines: trials that did not finish."
    ]
    if best is None:
        notes.append("No trial has a value.")
    folded = {"best.yaml, a recipe that `rayfed-kd run` takes": text} if (text := found.best_recipe()) else {}
    return Section(
        f"Search {found.folder.resolve().name}",
        notes,
        [_space(found), _trials(found), *failures],
        legend={"trials": TRIALS} | ({"failed": FAILED} if failures else {}) | {"the best": BEST},
        pictures=_pictures(found),
        folded=folded,
    )


def _space(found: Found) -> Table:
    best, rows = found.best, []
    for key, entry in found.space.raw.items():
        ((kind, values),) = entry.items()
        rows.append((key, kind, shown(values), "" if best is None else shown(best.coefficients[key])))
    return Table("What was searched", ("coefficient", "drawn", "from", "best trial's"), rows, left=3)


def _trials(found: Found) -> Table:
    keys = [key.removeprefix("method.") for key in found.space.keys]
    header = ("trial", "status", *keys, "best (%)", "in round", "last (%)", "rounds", "s")
    rows = [
        (
            str(row.trial),
            row.status,
            *(shown(row.coefficients[key]) for key in found.space.keys),
            _percent(row.best),
            "" if row.best_round is None else str(row.best_round),
            _percent(row.last),
            str(row.rounds),
            f"{row.seconds:.1f}",
        )
        for row in found.ranked()
    ]
    return Table("Trials, the best first", header, rows, left=2)


def _failures(found: Found) -> list[Table]:
    rows = [(str(row.trial), row.error or "") for row in found.rows if row.status == "failed"]
    return [Table("Failed trials", ("trial", "error"), rows, left=2)] if rows else []


def _pictures(found: Found) -> list[Picture]:
    rows = [row for row in found.rows if row.best is not None]
    if not rows:
        return []
    best, axes_of = found.best, [CoefficientAxis.of(key, found.space) for key in found.space.keys]
    lines = [
        Line(
            BEST if row is best else TRIALS, *zip(*((r, 100 * value) for r, value in row.values), strict=True)
        )
        for row in sorted(rows, key=lambda row: row is best)
    ]
    pictures = [lines_picture(f"{found.metric} (%) of every trial", lines, "round", "A line per trial")]
    for axis in axes_of:

        def scatter(axes: Axes, axis: CoefficientAxis = axis) -> None:
            draw_scatter(axes, axis, rows, best)
            axes.set_xlabel(axis.key)
            axes.grid(True)

        pictures.append(panel(f"Best {found.metric} (%) against {axis.key}", "A point per trial", scatter))

    def parallel(axes: Axes) -> None:
        draw_parallel(axes, axes_of, rows, best, lambda row: SERIES[BEST if row is best else TRIALS])

    size = (max(PANEL[0], 1.5 * len(axes_of) + 2.0), PANEL[1])
    described = (
        "A line per trial across an axis per coefficient, the best one thick; the last axis is the metric's"
    )
    return [*pictures, panel("All coefficients of every trial", described, parallel, size)]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"
