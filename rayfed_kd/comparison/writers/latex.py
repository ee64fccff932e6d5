"""A comparison as a LaTeX table for the package booktabs: comparison.tex."""

from __future__ import annotations

from collections.abc import Iterable

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.table_text import caption, remarks
from rayfed_kd.comparison.writers.all_tables import main_table, tables_beneath
from rayfed_kd.results.screen_table import TextTable

# All ten characters that LaTeX reads as commands, three that its default fonts print as others, and the two
# signs that our own texts use.
_NAMED = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "|": "bar", "<": "less", ">": "greater"}
_ESCAPES = str.maketrans(
    {sign: f"\\{sign}" for sign in "${}%_&#"}
    | {sign: rf"\text{name}{{}}" for sign, name in _NAMED.items()}
    | {"±": r"$\pm$", "→": r"$\to$"}
)


def render_latex(comparison: Comparison) -> str:
    """The table, with what a reader must know as its last line; then claims, costs and published values.

    Args:
        comparison: what is shown.

    Returns: a `tabular` environment for each, without a final line break; labels and titles are escaped.
    """
    comments = [caption(comparison), *remarks(comparison)]
    lines = [*map(_comment, comments), *_tabular(main_table(comparison), " ".join(comments))]
    for table in tables_beneath(comparison):
        lines += ["", "\\bigskip", _comment(table.title), *_tabular(table, f"{table.title}.")]
    return "\n".join(lines)


def _tabular(table: TextTable, note: str) -> list[str]:
    """A table with a note in a line below its last rule."""
    columns = len(table.header)
    printed = f"\\multicolumn{{{columns}}}{{p{{\\linewidth}}}}{{\\footnotesize {escape_latex(note)}}} \\\\"
    lines = (map(escape_latex, line) for line in (table.header, *table.rows))
    return tabular("l" * table.left + "r" * (columns - table.left), lines, printed)


def tabular(columns: str, lines: Iterable[Iterable[str]], *beneath: str) -> list[str]:
    """A `tabular` environment with the rules of booktabs.

    Args:
        columns: how each stands, as `lrr`.
        lines: the header's cells, then each row's, as LaTeX.
        beneath: lines below the last rule.
    """
    header, *rows = (" & ".join(line) + r" \\" for line in lines)
    head = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header, r"\midrule"]
    return [*head, *rows, r"\bottomrule", *beneath, r"\end{tabular}"]


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is.

    Args:
        text: a label or sentence of any characters.

    Returns: the text in one line, with LaTeX's special characters escaped; `->` becomes an arrow, and two
        hyphens no dash.
    """
    # One pass over the characters: what an escape inserts is never escaped again.
    return _one_line(text).replace("->", "→").translate(_ESCAPES).replace("--", "-{}-{}")


def _comment(text: str) -> str:
    # A line break in a title would end the comment, and LaTeX would read the rest.
    return f"% {_one_line(text)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
