"""A comparison as a LaTeX table for the package booktabs: comparison.tex."""

from __future__ import annotations

from collections.abc import Sequence

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.table_text import caption, cells, header, remarks
from rayfed_kd.comparison.writers.claim_table import claim_cells
from rayfed_kd.comparison.writers.cost_table import cost_cells, cost_header, cost_title
from rayfed_kd.comparison.writers.published_table import published_lines_of

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
    """The table, the published values beneath it, and what a reader must know as its last line; the costs.

    Args:
        comparison: what is shown.

    Returns: two `tabular` environments, that of the costs below the other, without a final line break; labels
        and titles are escaped.
    """
    columns = header(comparison)
    published = published_lines_of(comparison)
    told = [caption(comparison), *remarks(comparison), *(paper.heading for paper in published)]
    lines = [
        _comment(caption(comparison)),
        *map(_comment, remarks(comparison)),
        *_table_head(columns),
        *map(_text_line, cells(comparison)),
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
    lines += [*_table_end(len(columns), " ".join(told)), "", "\\bigskip", _comment(cost_title(comparison))]
    lines += [*_table_head(cost_header(comparison)), *map(_text_line, cost_cells(comparison))]
    return "\n".join([*lines, *_table_end(len(cost_header(comparison)), f"{cost_title(comparison)}.")])


def _table_head(columns: Sequence[str]) -> list[str]:
    """The beginning of a table with names in its first column and numbers in the others."""
    begin = f"\\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}"
    return [begin, "\\toprule", _text_line(columns), "\\midrule"]


def _table_end(columns: int, note: str) -> list[str]:
    """The end of a table: what a reader must know of it, in a line below the last rule."""
    printed = f"\\multicolumn{{{columns}}}{{p{{\\linewidth}}}}{{\\footnotesize {escape_latex(note)}}} \\\\"
    return ["\\bottomrule", printed, "\\end{tabular}"]


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is.

    Args:
        text: a label or sentence of any characters.

    Returns: the text in one line, with LaTeX's special characters escaped; `->` becomes an arrow.
    """
    # One pass over the characters: what an escape inserts is never escaped again.
    return _one_line(text).replace("->", "→").translate(_ESCAPES)


def _text_line(texts: Sequence[str]) -> str:
    return _table_line([escape_latex(text) for text in texts])


def _table_line(escaped_cells: Sequence[str]) -> str:
    return " & ".join(escaped_cells) + r" \\"


def _comment(text: str) -> str:
    # A line break in a title would end the comment, and LaTeX would read the rest.
    return f"% {_one_line(text)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
