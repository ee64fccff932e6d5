"""The section about a search: what was searched, every trial, and the metric against the coefficients."""

from __future__ import annotations

from rayfed_kd.reporting.pictures import Picture, base64_png, lines_picture
from rayfed_kd.reporting.sections import Section
from rayfed_kd.results.charts.lines import Line
from rayfed_kd.results.screen_table import TextTable
from rayfed_kd.tuning.search_result import PICTURE, SearchResult
from rayfed_kd.tuning.space import coefficient_text

TRIALS, BEST = 0, 2  # looks of curves


def search_section(search: SearchResult) -> Section:
    """The section about one search.

    Args:
        search: what it found so far.
    """
    best, path = search.best, search.folder / PICTURE
    finished, stopped = (sum(row.status == s for row in search.rows) for s in ("finished", "stopped"))
    failures = _failures(search)
    seconds = sum(row.seconds for row in search.rows)
    notes = [
        f"{search.metric}, {search.summary}: {len(search.rows)} trials, {finished} finished, "
        f"{stopped} stopped early; {seconds:.0f} s in rounds, all trials together."
    ]
    if best is None:
        notes.append("No trial has a value.")
    trials = TextTable("Trials, the best first", *search.trial_texts(), left=2)
    folded = (
        {"best.yaml, a recipe that `rayfed-kd run` takes": text} if (text := search.best_recipe()) else {}
    )
    return Section(
        f"Search {search.folder.resolve().name}",
        notes,
        [_space(search), trials, *failures],
        legend={"trials": TRIALS, "the best": BEST},
        pictures=_curves(search),
        # As `tune` drew it at its end; a search that still runs has none.
        images={f"Best {search.metric} (%)": base64_png(path)} if path.is_file() else {},
        folded=folded,
    )


def _space(search: SearchResult) -> TextTable:
    best, rows = search.best, []
    for key, entry in search.space.entries.items():
        ((kind, values),) = entry.items()
        rows.append(
            (
                key,
                kind,
                coefficient_text(values),
                "" if best is None else coefficient_text(best.coefficients[key]),
            )
        )
    return TextTable("What was searched", ("coefficient", "drawn", "from", "best trial's"), rows, left=3)


def _failures(search: SearchResult) -> list[TextTable]:
    rows = [(str(row.trial), row.error or "") for row in search.rows if row.status == "failed"]
    return [TextTable("Failed trials", ("trial", "error"), rows, left=2)] if rows else []


def _curves(search: SearchResult) -> list[Picture]:
    rows = [row for row in search.rows if row.best is not None]
    if not rows:
        return []
    best = search.best
    lines = [
        Line(
            BEST if row is best else TRIALS, *zip(*((r, 100 * value) for r, value in row.values), strict=True)
        )
        for row in sorted(rows, key=lambda row: row is best)
    ]
    return [lines_picture(f"{search.metric} (%) of every trial", lines, "round", "A line per trial")]
