"""A comparison as a LaTeX table for the package booktabs: comparison.tex."""

from __future__ import annotations

from collections.abc import Sequence

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.table_text import caption, remarks
from rayfed_kd.comparison.writers.all_tables import main_table, tables_beneath
from rayfed_kd.results.screen_table import TextTable

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
    """The table, with what a reader must know as its last line; then claims, costs and published values.

    Args:
        comparison: what is shown.

    Returns: a `tabular` environment for each, without a final line break; labels and titles are escaped.
    """
    told = [caption(comparison), *remarks(comparison)]
    lines = [*map(_comment, told), *_tabular(main_table(comparison), " ".join(told))]
    for table in tables_beneath(comparison):
        lines += ["", "\\bigskip", _comment(table.title), *_tabular(table, f"{table.title}.")]
    return "\n".join(lines)


def _tabular(table: TextTable, note: str) -> list[str]:
    """A table with a note in a line below its last rule."""
    columns = len(table.header)
    printed = f"\\multicolumn{{{columns}}}{{p{{\\linewidth}}}}{{\\footnotesize {escape_latex(note)}}} \\\\"
    return [
        f"\\begin{{tabular}}{{{'l' * table.left}{'r' * (columns - table.left)}}}",
        *("\\toprule", _table_line(table.header), "\\midrule"),
        *map(_table_line, table.rows),
        *("\\bottomrule", printed, "\\end{tabular}"),
    ]


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is.

    Args:
        text: a label or sentence of any characters.

    Returns: the text in one line, with LaTeX's special characters escaped; `->` becomes an arrow.
    """
    # One pass over the characters: what an escape inserts is never escaped again.
    return _one_line(text).replace("->", "→").translate(_ESCAPES)


def _table_line(texts: Sequence[str]) -> str:
    return " & ".join(map(escape_latex, texts)) + r" \\"


def _comment(text: str) -> str:
    # A line break in a title would end the comment, and LaTeX would read the rest.
    return f"% {_one_line(text)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
