"""The papers' printed tables beneath ours, each with how far both orders agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.paper_rows import PaperRows, printed_text
from rayfed_kd.comparison.table_text import metric_title


@dataclass(frozen=True)
class PublishedLines:
    """A paper's printed table beneath ours.

    Attributes:
        heading: which table, what differs here, and how far both orders agree.
        lines: (system, its values as printed).
    """

    heading: str
    lines: Sequence[tuple[str, str]]


def published_lines_of(comparison: Comparison) -> list[PublishedLines]:
    """Every printed table that the study names, with the agreement of both orders in its heading."""
    return [
        PublishedLines(
            _published_heading(comparison, paper),
            [
                (
                    line["label"],
                    ", ".join(f"{metric} {printed_text(value)}" for metric, value in line["values"].items()),
                )
                for line in paper.lines
            ],
        )
        for paper in comparison.papers
    ]


def _published_heading(comparison: Comparison, paper: PaperRows) -> str:
    published = paper.published
    where = ", ".join(f"{key} {value}" for key, value in published.where.items())
    heading = f"Published, {published.paper} table {published.table}" + (f" ({where})" if where else "")
    if published.differs:
        heading += f"; here differs: {published.differs}"
    agreement = comparison.agreement(paper)
    if agreement is None:
        return heading
    return (
        f"{heading}; rank correlation (Kendall's tau-b) of {paper.metric} against our "
        f"{metric_title(agreement.metric)}, {agreement.statistic}, over {agreement.rows} rows: "
        f"{agreement.tau:.2f}"
    )
