"""The sections of what `compare` wrote and of what `tune` tried, and of a headline against what it cost.

`compare` wrote a table, claims, costs and papers' numbers; costs are bytes, epsilon or seconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rayfed_kd.comparison.curves import AXES, AxisName
from rayfed_kd.comparison.studies import check_names
from rayfed_kd.comparison.writers.all_tables import read_table_line, unescaped
from rayfed_kd.comparison.writers.pictures import lines_over_cost
from rayfed_kd.errors import RecipeError, in_words
from rayfed_kd.reporting.reading import Run
from rayfed_kd.reporting.sections import (
    Picture,
    Section,
    base64_png,
    lines_picture,
    series_curves,
    series_looks,
)
from rayfed_kd.results.charts.lines import Line
from rayfed_kd.results.names import metric_scale, metric_title
from rayfed_kd.results.screen_table import TextTable
from rayfed_kd.results.summary import most_common_headline
from rayfed_kd.tuning.search_result import PICTURE, SearchResult
from rayfed_kd.tuning.space import coefficient_text


def comparison_section(folder: str, text: str) -> Section:
    """What `compare` wrote: our rows, and the paper's as printed.

    Args:
        folder: the comparison's folder.
        text: comparison.md; "" if it was not written yet.
    """
    heading = f"Comparison {Path(folder).resolve().name}"
    if not text:
        return Section(heading, ["The comparison was not ended: these are the runs that it has so far."])
    blocks = re.split(r"\n\s*\n", text.strip())
    tables, notes, title = [], [], ""
    for block in blocks:
        lines = [read_table_line(line) for line in block.splitlines()]
        if not block.startswith("|"):
            title = unescaped(block.strip().removesuffix(":"))
            notes.append(title)
        else:
            tables.append(TextTable(title, lines[0], lines[2:]))
    return Section(heading, [note for note in notes if note not in {t.title for t in tables}], tables)


def study_title(text: str) -> str:
    """The study's title in what `compare` wrote; "" if there is none.

    Args:
        text: comparison.md.
    """
    title = unescaped(text.partition("\n")[0].rpartition("; last round, ")[0])
    return "" if title == "Comparison" else title


TRIALS, BEST = 0, 2  # looks of curves


def search_section(search: SearchResult) -> Section:
    """The section about one search.

    Args:
        search: what it found so far.
    """
    best, path = search.best, search.folder / PICTURE
    finished, stopped = (sum(row.status == s for row in search.rows) for s in ("finished", "stopped"))
    failed = [(str(row.trial), row.error or "") for row in search.rows if row.status == "failed"]
    seconds = sum(row.seconds for row in search.rows)
    notes = [
        f"{search.metric}, {search.summary}: {len(search.rows)} trials, {finished} finished, "
        f"{stopped} stopped early; {seconds:.0f} s in rounds, all trials together."
    ]
    if best is None:
        notes.append("No trial has a value.")
    tables = [_space(search), TextTable("Trials, the best first", *search.trial_texts(), left=2)]
    if failed:
        tables.append(TextTable("Failed trials", ("trial", "error"), failed, left=2))
    recipe = search.best_recipe()
    return Section(
        f"Search {search.folder.resolve().name}",
        notes,
        tables,
        legend={"trials": TRIALS, "the best": BEST},
        pictures=_curves(search),
        # As `tune` drew it at its end; a search that still runs has none.
        images={f"Best {search.metric.title}": base64_png(path)} if path.is_file() else {},
        folded={"best.yaml, a recipe that `rayfed-kd run` takes": recipe} if recipe else {},
    )


def _space(search: SearchResult) -> TextTable:
    best = {} if search.best is None else search.best.coefficients
    rows = [
        (key, kind, coefficient_text(values), coefficient_text(best[key]) if best else "")
        for key, entry in search.space.entries.items()
        for kind, values in entry.items()
    ]
    return TextTable("What was searched", ("coefficient", "drawn", "from", "best trial's"), rows, left=3)


def _curves(search: SearchResult) -> list[Picture]:
    rows = [row for row in search.rows if row.best is not None]
    if not rows:
        return []
    lines, best, scale = list[Line](), search.best, metric_scale(search.metric.name)
    for row in sorted(rows, key=lambda row: row is best):
        rounds, values = zip(*row.values, strict=True)
        lines.append(Line(BEST if row is best else TRIALS, rounds, [scale * value for value in values]))
    return [lines_picture(f"{search.metric.title} of every trial", lines, "round", "A line per trial")]


def against_section(runs: Sequence[Run], axes: Sequence[str]) -> Section | None:
    """The headline against costs, a picture for each.

    Args:
        runs: what the report is about.
        axes: names of `AXES`. Without any, bytes where there are several rows, and epsilon where a run has a
            finite one.

    Returns: None if there is nothing to draw.

    Raises:
        RecipeError: an axis that was asked for is none, or no run has such a cost.
    """
    check_names("--against", axes, AXES)
    headline = _headline(runs)
    if headline is None:
        return None
    looks, pictures, notes = series_looks(runs), list[Picture](), list[str]()
    curves, title = series_curves(runs, headline), metric_title(headline)
    for axis in [axis for axis in AXES if axis in axes] or _own_axes(runs):
        lines, over = lines_over_cost(curves, looks, metric_scale(headline), axis), AXES[axis].title
        without = [name for name, line in zip(curves, lines, strict=True) if line.dotted]
        if len(without) < len(lines):
            heading = f"{title}, by {over}"
            described = f"{heading}: a line per row and model"
            pictures.append(lines_picture(heading, lines, over, described, costs=True))
            if without:
                notes.append(f"{over}: {in_words(without)} ({AXES[axis].none}): dotted, at the last value.")
        elif axes:
            raise RecipeError(f"--against {axis}: no run has {over}, so there is nothing to draw")
    if not pictures:
        return None
    about = (
        "A point for each evaluated round, a ring at the last one; values and costs are means over seeds. "
        "The axis is logarithmic where costs span more than a decade."
    )
    return Section("Against costs", [about, *notes], (), looks, pictures)


def _own_axes(runs: Sequence[Run]) -> list[AxisName]:
    axes: list[AxisName] = []
    if len({run.group for run in runs}) > 1:
        axes.append("bytes")
    if any(run.tables["privacy"].num_rows for run in runs):
        axes.append("epsilon")
    return axes


def _headline(runs: Sequence[Run]) -> str | None:
    """The headline that most runs and models have; None: none has any."""
    metrics = [metric for run in runs for _, metric in run.curves]
    most = most_common_headline(metrics)
    return most if most in metrics else None
