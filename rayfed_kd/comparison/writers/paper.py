"""Files for a paper: a LaTeX table for booktabs, and figures of a column's width as PDF and SVG."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import style
from matplotlib.figure import Figure

from rayfed_kd.comparison import table_text
from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.differences import Row
from rayfed_kd.comparison.row_notes import paper_columns, paper_rows
from rayfed_kd.comparison.studies import Paper
from rayfed_kd.comparison.writers.latex import escape_latex, tabular
from rayfed_kd.comparison.writers.pictures import mean_line
from rayfed_kd.errors import RecipeError
from rayfed_kd.files.whole import atomic_write, make_folder, written_aside
from rayfed_kd.results.charts.lines import Interval, column_lines, intervals_figure
from rayfed_kd.results.names import metric_scale, metric_title

# Small type for a column; text stays text, and the same figure gives the same bytes.
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "rayfed-kd",
}
# The formats, and what of their metadata would not be the same.
UNDATED: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}


def write_paper(comparison: Comparison, paper: Paper, folder: Path) -> list[Path]:
    """Write table.tex, and as PDF and SVG curves-METRIC and intervals-METRIC.

    Args:
        comparison: what is shown.
        paper: which rows and columns of it, and how.
        folder: made if it is not there.

    Returns: the files' paths.

    Raises:
        RecipeError: the file of the style is none.
    """
    rows, columns = paper_rows(comparison, paper), paper_columns(comparison, paper)
    metrics = [column for column in columns if column in comparison.metrics]
    make_folder(folder)
    table = folder / "table.tex"
    atomic_write(table, paper_table(comparison, rows, columns) + "\n")
    paths = [table]
    with styled(paper.style):
        for metric in metrics:
            paths += _saved(_curves(comparison, rows, metric, paper.width), folder / f"curves-{metric}")
        if "difference" in columns:
            metric = metric_title(comparison.headline).replace(" %", ", points")
            title = f"{metric}, less {comparison.baseline_label}"
            figure = intervals_figure(_intervals(comparison, rows), title, paper.width)
            paths += _saved(figure, folder / f"intervals-{comparison.headline}")
    # Of rows and columns that this table has not any more; other files are the user's.
    drawn = [f"{kind}-{metric}" for kind in ("curves", "intervals") for metric in comparison.metrics]
    for path in {folder / f"{name}.{end}" for name in drawn for end in UNDATED}.difference(paths):
        path.unlink(missing_ok=True)
    return paths


@contextmanager
def styled(file: str | None) -> Iterator[None]:
    """Draws in the style of papers, and in that of a file of matplotlib's above it.

    Raises: RecipeError if it is no such file.
    """
    if file is not None and not Path(file).is_file():
        raise RecipeError(f"paper.style: there is no file {file}")
    with matplotlib.rc_context():
        matplotlib.rcParams.update(STYLE)
        if file is not None:
            try:
                style.use(str(Path(file).absolute()))
            except (OSError, ValueError) as error:  # ValueError: it is no text
                raise RecipeError(f"paper.style: {file} is no style of matplotlib's: {error}") from None
        yield


def paper_table(comparison: Comparison, rows: Sequence[Row], columns: Sequence[str]) -> str:
    """A `table` environment with caption and label; the best mean of a metric's column is bold.

    Args:
        comparison: whose numbers.
        rows: of them.
        columns: metrics, `difference`, and `published`.
    """
    header, cells = ["run"], [[escape_latex(table_text.row_name(comparison, row))] for row in rows]
    for column in columns:
        for title, texts in _column(comparison, rows, column):
            header.append(escape_latex(title))
            for line, text in zip(cells, texts, strict=True):
                line.append(text)
    label = re.sub(r"\W+", "-", Path(comparison.study.folder).name).strip("-")
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            *(r"\begin{table}[t]", r"\centering"),
            rf"\caption{{{escape_latex(' '.join(_caption(comparison, columns)))}}}",
            rf"\label{{tab:{label}}}",
            *tabular("l" + "r" * (len(header) - 1), [header, *cells]),
            r"\end{table}",
        ]
    )


def _column(comparison: Comparison, rows: Sequence[Row], column: str) -> Iterator[tuple[str, list[str]]]:
    """A column's title and cells; one for each printed metric of `published`."""
    if column == "published":
        for metric, printed in comparison.printed_values().items():
            texts = [table_text.printed_cell(printed, row) for row in rows]
            yield f"published {metric}", list(map(escape_latex, texts))
    elif column == "difference":
        yield "difference", [_difference(comparison, row) for row in rows]
    else:
        # Of the statistic that differences are of: their columns stand side by side.
        values = [comparison.values(row, column, "mean of last") for row in rows]
        means = [statistics.fmean(numbers) for numbers in values if numbers]
        better = next(c.better for row in rows for c in comparison.seed_curves(row, column).values())
        # As it is shown: rows that differ in no digit that stands there are both the best.
        best = table_text.mean_text([better(means)], column) if means else ""
        texts = [
            _math(text := table_text.mean_text(numbers, column), bold=text.split(" ")[0] == best)
            for numbers in values
        ]
        yield metric_title(column), texts


def _difference(comparison: Comparison, row: Row) -> str:
    if (difference := comparison.difference(row)) is None:
        return ""
    text = _math(table_text.difference_text(difference, comparison.headline))
    return f"{text} {escape_latex(_other_baseline(comparison, row))}".rstrip()


def _other_baseline(comparison: Comparison, row: Row) -> str:
    """`to LABEL` of a row whose difference is not to the comparison's baseline."""
    baseline = comparison.baseline(row)
    return "" if baseline is None or baseline[0] == comparison.baseline_label else f"to {baseline[0]}"


def _math(text: str, *, bold: bool = False) -> str:
    """A number, with its deviation or interval, as LaTeX sets numbers."""
    if not text:
        return ""
    mean, space, rest = text.partition(" ")
    number = rf"\mathbf{{{mean}}}" if bold else mean
    rest = rest.replace("±", r"\pm").replace("[", r"\ [")
    return f"${number}{space}{rest}$"


def _caption(comparison: Comparison, columns: Sequence[str]) -> Iterator[str]:
    yield table_text.caption(comparison, table_text.mean_of_last(comparison))
    if any(column not in ("difference", "published") for column in columns):
        yield "Bold: the best mean of a column."
    if "difference" in columns:
        headline = metric_title(comparison.headline)
        yield (
            f"Difference: {headline}, {table_text.mean_of_last(comparison)}, less that of "
            f"{comparison.baseline_label} with the same seed: mean over seeds, and its 95 % confidence "
            "interval by Student's t."
        )


def _curves(comparison: Comparison, rows: Sequence[Row], metric: str, width: float) -> Figure:
    """A metric by round. A row has the same look in all figures."""
    lines = []
    for look, row in enumerate(rows):
        if curves := [*comparison.seed_curves(row, metric).values()]:
            name = table_text.row_name(comparison, row)
            lines.append(mean_line(look, curves, metric_scale(metric), label=name))
    return column_lines(lines, metric_title(metric), width)


def _intervals(comparison: Comparison, rows: Sequence[Row]) -> list[Interval]:
    scale = metric_scale(comparison.headline)
    intervals = []
    for row in rows:
        if (d := comparison.difference(row)) is not None:
            name = f"{table_text.row_name(comparison, row)} {_other_baseline(comparison, row)}".rstrip()
            intervals.append(Interval(name, scale * d.mean, scale * d.half_width, d.decided))
    return intervals


def _saved(figure: Figure, path: Path) -> list[Path]:
    kinds = {path.with_name(f"{path.name}.{kind}"): kind for kind in UNDATED}
    for file, kind in kinds.items():
        with written_aside(file) as aside:
            figure.savefig(aside, format=kind, metadata=UNDATED[kind])
    return list(kinds)
