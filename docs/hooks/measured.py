"""Writes the tables of finished studies into docs/results.md, so that nobody types them.

    python docs/hooks/measured.py RUNS

RUNS is the folder with the studies' folders, as `runs`. Each block of the page between
`<!-- measured: STUDY/TABLE -->` and `<!-- end -->` becomes what `compare` wrote to
RUNS/STUDY/TABLE/comparison.md; a block whose study is not there stays as it is. Sentences between the blocks
are written by hand.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

PAGE = Path(__file__).parents[1] / "results.md"
BLOCK = re.compile(r"(<!-- measured: (?P<study>\S+) -->\n)(?P<table>.*?)(<!-- end -->)", re.DOTALL)
CLAIMS = "Claims:"  # the paragraph before the table of verdicts
WIDTH = 100  # a line of Markdown outside tables


def with_tables(page: str, runs: Path) -> str:
    """The page with the tables that are in `runs`.

    Args:
        page: Markdown with blocks.
        runs: the folder with the studies' folders.
    """

    def block(found: re.Match[str]) -> str:
        path = runs / found["study"] / "comparison.md"
        table = wrapped(path.read_text(encoding="utf8")) if path.is_file() else found["table"]
        return f"{found[1]}{table}{found[4]}"

    return BLOCK.sub(block, page)


def wrapped(markdown: str) -> str:
    """The verdicts before the rows; sentences in lines of at most 100 characters, tables as they are."""
    title, *rest = re.split(r"\n\s*\n", markdown.strip())
    if CLAIMS in rest:
        place = rest.index(CLAIMS)
        rest = [rest[place + 1], *rest[:place], *rest[place + 2 :]]
    paragraphs = [
        paragraph if paragraph.startswith("|") else textwrap.fill(paragraph, WIDTH)
        for paragraph in (title, *rest)
    ]
    return "\n" + "\n\n".join(paragraphs) + "\n\n"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf8"), Path(sys.argv[1])), encoding="utf8")
