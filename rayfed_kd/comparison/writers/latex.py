"""A comparison as a LaTeX table for the package booktabs: comparison.tex."""

from __future__ import annotations

from collections.abc import Sequence

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.table_text import (
    caption,
    cells,
    claim_cells,
    header,
    published_lines_of,
    remarks,
)

# All ten characters that LaTeX reads as commands, and the two signs that our own texts use.
_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "$": r"\$",
        "{": r"\{",
        "}": r"\}",
        "%": r"\%",
        "_": r"\_",
        "&": r"\&",
        "#": r"\#",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "→": r"$\to$",
    }
)


def render_latex(comparison: Comparison) -> str:
    """The table, the published values beneath it, and what a reader must know as its last line.

    Args:
        comparison: what is shown.

    Returns: a `tabular` environment without a final line break; labels and titles are escaped.
    """
    columns = header(comparison)
    published = published_lines_of(comparison)
    told = [caption(comparison), *remarks(comparison), *(paper.heading for paper in published)]
    lines = [
        _comment(caption(comparison)),
        *map(_comment, remarks(comparison)),
        f"\\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
        "\\toprule",
        _table_line([escape_latex(cell) for cell in columns]),
        "\\midrule",
        *(_table_line([escape_latex(cell) for cell in line]) for line in cells(comparison)),
    ]
    span = f"\\multicolumn{{{len(columns) - 1}}}{{l}}"
    if comparison.study.claims:
        lines += ["\\midrule", _comment("claims")]
    for says, *facts in claim_cells(comparison):
        lines.append(_table_line([escape_latex(says), f"{span}{{{escape_latex(', '.join(facts))}}}"]))
    for paper in published:
        lines += ["\\midrule", _comment(paper.heading)]
        for label, values in paper.lines:
            system = escape_latex(f"{label}, published")
            lines.append(_table_line([system, f"{span}{{{escape_latex(values)}}}"]))
    note = escape_latex(" ".join(told))
    lines.append("\\bottomrule")
    lines.append(f"\\multicolumn{{{len(columns)}}}{{p{{\\linewidth}}}}{{\\footnotesize {note}}} \\\\")
    return "\n".join([*lines, "\\end{tabular}"])


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is.

    Args:
        text: a label or sentence of any characters.

    Returns: the text in one line, with LaTeX's special characters escaped; `->` becomes an arrow.
    """
    # One pass over the characters: what an escape inserts is never escaped again.
    return _one_line(text).replace("->", "→").translate(_ESCAPES)


def _table_line(escaped_cells: Sequence[str]) -> str:
    return " & ".join(escaped_cells) + r" \\"


def _comment(text: str) -> str:
    # A line break in a title would end the comment, and LaTeX would read the rest.
    return f"% {_one_line(text)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
