"""What a page is made of: sections of tables, pictures and text, without any HTML or Markdown.

Pictures are SVG in the page's own colours, so that they follow its light and dark themes. matplotlib draws in
stand-in colours, which are then replaced by `currentColor` and the page's variables --s0 to --s6. Text stays
text. A panel is as wide as a phone: it is legible there, and three stand side by side on a desktop screen.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rayfed_kd.comparison.curves import Curve
from rayfed_kd.reporting.reading import Run
from rayfed_kd.results.charts.figure import COLOURS
from rayfed_kd.results.charts.lines import Line, draw_lines
from rayfed_kd.results.charts.partition import bubble_figure
from rayfed_kd.results.screen_table import TextTable

Array = np.ndarray[Any, Any]

INK = "#010203"  # stands for the page's text colour; no palette has it
SERIES = (*(colour.lower() for colour in COLOURS[:6]), INK)
PANEL = (4.6, 2.9)  # inches
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "text.parse_math": False,  # a label may hold a dollar sign
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.15,
    "axes.formatter.useoffset": False,
} | dict.fromkeys(
    ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), INK
)


@dataclass(frozen=True)
class Picture:
    """A drawn picture.

    Attributes:
        title: what it shows, in a line.
        description: the same for those who do not see it.
        width, height: of the drawing, in CSS pixels.
        body: the SVG's content; its ids are its own only.
    """

    title: str
    description: str
    width: float
    height: float
    body: str

    @property
    def wide(self) -> bool:
        """Whether a narrow screen should scroll the picture rather than shrink it."""
        return self.width > 1.3 * 72 * PANEL[0]

    def content(self, name: str) -> Markup:
        """The drawing for a page.

        Args:
            name: put before all ids, so that no other picture of the page has the same.
        """
        return Markup(re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", self.body))


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        heading: its title.
        notes: sentences above the tables.
        tables: in order.
        pictures: drawn for the page.
        legend: series -> its look, a number that stands for colour and dashes; of all its pictures.
        images: title -> PNG in base64, drawn by the run.
        folded: title -> text shown as it is, on demand.
    """

    heading: str
    notes: Sequence[str] = ()
    tables: Sequence[TextTable] = ()
    legend: Mapping[str, int] = field(default_factory=dict)
    pictures: Sequence[Picture] = ()
    images: Mapping[str, str] = field(default_factory=dict)
    folded: Mapping[str, str] = field(default_factory=dict)


def series_looks(runs: Sequence[Run]) -> dict[str, int]:
    """Series -> look, for curves of all runs. The seeds of a row share one look.

    Args:
        runs: what the report is about.
    """
    names = [
        series_name(runs, run, model)
        for run in runs
        for table in ("metrics", "clients")  # a kill may leave a round in one of them alone
        for model in run.tables[table]["model"].unique().to_pylist()
    ]
    return {name: look for look, name in enumerate(dict.fromkeys(names))}


def series_curves(runs: Sequence[Run], metric: str) -> dict[str, list[Curve]]:
    """Series -> the metric's curves of all its runs.

    Args:
        runs: what the report is about.
        metric: the metric's column, or a name of `score_name`.
    """
    series: dict[str, list[Curve]] = {}
    for run in runs:
        for (model, name), curve in run.curves.items():
            if name == metric:
                series.setdefault(series_name(runs, run, model), []).append(curve)
    return series


def series_name(runs: Sequence[Run], run: Run, model: str) -> str:
    """The name of a run's curve in a legend: row and model, without what all curves share.

    Args:
        runs: all runs of the report.
        run: one of them.
        model: one of its evaluated models.
    """
    if len({other.group for other in runs}) == 1:
        return model
    return run.group if len(run.summary["models"]) == 1 else f"{run.group}, {model}"


def lines_picture(
    title: str, lines: Sequence[Line], across: str, description: str, *, costs: bool = False
) -> Picture:
    """Values by round, by second or by what they cost.

    Args:
        title: what the picture shows.
        lines: drawn in order, the last one on top.
        across: the axis' label; with "round" its ticks are whole numbers.
        description: for readers who do not see the picture.
        costs: whether a line is drawn over what it cost: it has a ring at its end, and the axis is
            logarithmic where costs span more than a decade.
    """

    def draw(axes: Axes) -> None:
        draw_lines(axes, lines, across, costs=costs, palette=SERIES, shade=0.15)
        axes.grid(True)

    return panel(title, description, draw)


def partition_picture(counts: Array, class_names: Sequence[str], title: str) -> Picture:
    """Clients by classes, as `bubble_figure`.

    Args:
        counts: [clients, classes], samples.
        class_names: [classes].
        title: what the picture shows.
    """
    with matplotlib.rc_context(STYLE):
        figure = bubble_figure(counts, class_names, "")
        return _svg_picture(
            figure, title, "Clients across, classes up; a bubble's area is the number of samples"
        )


def panel(
    title: str, description: str, draw: Callable[[Axes], None], size: tuple[float, float] = PANEL
) -> Picture:
    """A picture of one pair of axes.

    Args:
        title: what the picture shows.
        description: for readers who do not see the picture.
        draw: draws with the colours of `SERIES`.
        size: in inches.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.add_subplot())
        return _svg_picture(figure, title, description)


def _svg_picture(figure: Figure, title: str, description: str) -> Picture:
    stream = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    svg = stream.getvalue()
    body = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    # The page has a style and namespaces of its own.
    body = re.sub(r"<(metadata|style).*?</\1>|<metadata */>", "", body, flags=re.DOTALL)
    body = body.replace("xlink:href", "href")
    for place, colour in enumerate(SERIES):
        body = body.replace(colour, "currentColor" if colour == INK else f"var(--s{place})")
    width, height = (72 * float(side) for side in figure.get_size_inches())
    return Picture(title, description, width, height, body)


def base64_png(path: Path) -> str:
    """A drawn picture as a page holds it."""
    return base64.b64encode(path.read_bytes()).decode("ascii")
