"""A comparison as Markdown: comparison.md, which the report reads again."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.table_text import caption, remarks
from rayfed_kd.comparison.writers.all_tables import main_table, tables_beneath
from rayfed_kd.results.screen_table import TextTable

# What Markdown would not show: a bar, which ends a cell; a backslash, an asterisk, a tag, an entity, and a
# bracket that makes a link. Brackets around an interval, a lone "<" and the code of our own sentences stay.
_SPECIAL = re.compile(r"\\(?=[!-/:-@\[-`{-~])|[*|]|\](?=[(\[:])|<(?=[A-Za-z/!?])|&(?=#?\w+;)")
_ESCAPED = re.compile(r"\\([\\*|\]])|&lt;|&amp;")
# A backslash before a "<" is none for every reader of Markdown.
_ENTITIES = {"<": "&lt;", "&": "&amp;"}
_CHARACTERS = {entity: character for character, entity in _ENTITIES.items()}


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, in one line, also within a table."""
    one_line = " ".join(text.split())
    return _SPECIAL.sub(lambda found: _ENTITIES.get(found[0], f"\\{found[0]}"), one_line)


def unescaped(text: str) -> str:
    """The text that `escaped` was given, in one line."""
    return _ESCAPED.sub(lambda found: found[1] or _CHARACTERS[found[0]], text)


def render_markdown(comparison: Comparison) -> str:
    """The caption, the table, the remarks beneath it, the claims, the costs, and a table per paper.

    Args:
        comparison: what is shown.

    Returns: Markdown without a final line break.
    """
    lines = [escaped(caption(comparison)), "", *_table(main_table(comparison))]
    for remark in remarks(comparison):
        lines += ["", escaped(remark)]
    for table in tables_beneath(comparison):
        lines += ["", f"{escaped(table.title)}:", "", *_table(table)]
    return "\n".join(lines)


def read_table_line(line: str) -> list[str]:
    """The cells of a line of a table that `render_markdown` wrote."""
    parts = line.strip().removeprefix("|").removesuffix("|").split(" | ")
    return [unescaped(part.strip()) for part in parts]


def _table(table: TextTable) -> list[str]:
    rule = ["---"] * len(table.header)
    return [_table_line(row) for row in (table.header, rule, *table.rows)]


def _table_line(parts: Sequence[str]) -> str:
    return f"| {' | '.join(map(escaped, parts))} |"
