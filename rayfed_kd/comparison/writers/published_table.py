"""The papers' printed tables beneath ours, each with how far both orders agree."""

from __future__ import annotations

from collections.abc import Mapping

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.published.paper_rows import PaperRows, PrintedValue, printed_text
from rayfed_kd.comparison.table_text import metric_title
from rayfed_kd.results.screen_table import TextTable


def published_tables(comparison: Comparison) -> list[TextTable]:
    """Every printed table that the study names.

    Its title says which one it is, what differs here, and how far both orders agree.
    """
    return [
        TextTable(
            _published_heading(comparison, paper),
            ("system", "as printed"),
            [(line["label"], _printed_texts(line["values"])) for line in paper.lines],
            left=2,
        )
        for paper in comparison.papers
    ]


def _printed_texts(values: Mapping[str, PrintedValue]) -> str:
    return ", ".join(f"{metric} {printed_text(value)}" for metric, value in values.items())


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
