"""MkDocs hook: the paper index, made of what the docstrings of the package cite.

A citation is `Authors YEAR, Title, Venue, arXiv NUMBER`; title, venue and number may be missing.
`python docs/hooks/papers.py` prints the index.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = "papers.md"
MARK = "<!-- papers -->"
# Where a file lies -> the section of the index; a paper is in the first section that cites it.
SECTIONS = {
    "algorithms": "Methods",
    "rayfed_kd/toolbox": "Losses and parts of methods",
    "rayfed_kd/features/codecs": "Codecs",
    "rayfed_kd/timing": "Schedules and staleness",
    "rayfed_kd/features/privacy": "Privacy",
    "rayfed_kd/recipe/sections/privacy": "Privacy",
    "rayfed_kd/models": "Models",
    "rayfed_kd/data": "Data and partitions",
    "rayfed_kd": "Metrics, attacks, statistics and searches",
    "cluster": "Metrics, attacks, statistics and searches",
}
TOPS = tuple(dict.fromkeys(place.partition("/")[0] for place in SECTIONS))
NAME = r"[A-Z][\w'\-]+"
CITATION = re.compile(
    rf"(?P<authors>{NAME}(?:(?:, | and ){NAME})*(?: et al\.)?,?) (?P<year>(?:19|20)\d\d)(?!\w)"
    rf"(?P<about>(?:[^;.()]|\.(?!\s)|\([^)]*\))*?)(?:arXiv (?P<number>\d{{4}}\.\d{{5}})|(?=;|\)|\.\s|\.?$))"
)
NUMBER = re.compile(r"arXiv (\d{4}\.\d{5})")
PLACES = re.compile(r",? (?:eqs?\.|equations?|sections?|Algorithms?|Appendix|Theorem|Table|Definition)\b.*")


@dataclass
class Paper:
    """A paper, and the files that have something of it.

    Attributes:
        authors, year, title: as cited where most of them is said.
        number: arXiv's; empty where no citation has one.
        files: in order, with the names of the functions and classes that cite it.
    """

    authors: str
    year: str
    title: str = ""
    number: str = ""
    files: dict[str, list[str]] = field(default_factory=dict)


def docstrings() -> Iterator[tuple[str, str, str]]:
    """(file, function or class, docstring) of the package; a module's own name is empty."""
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
                    text := ast.get_docstring(node)
                ):
                    yield str(path.relative_to(ROOT)), getattr(node, "name", ""), " ".join(text.split())


def papers() -> list[Paper]:
    """Every cited paper.

    Raises: ValueError if a citation without a number fits several papers, or a number stands without authors.
    """
    found: dict[str, Paper] = {}
    unnumbered = []
    for file, name, text in docstrings():
        cited = list(CITATION.finditer(text))
        if lost := set(NUMBER.findall(text)) - {citation["number"] for citation in cited}:
            raise ValueError(f"{file} {name}: who wrote arXiv {', '.join(lost)}, and when?")
        for citation in cited:
            if citation["number"] is None:
                unnumbered.append((file, name, citation))
            else:
                _note(found.setdefault(citation["number"], _paper(citation)), citation, file, name)
    for file, name, citation in unnumbered:
        key = citation["authors"].split(",")[0].split(" ")[0], citation["year"]
        alike = [one for one in found.values() if (one.authors.split(",")[0].split(" ")[0], one.year) == key]
        if len(alike) > 1 and not (alike := [one for one in alike if file in one.files]):
            raise ValueError(f"{file} {name}: {citation[0]} fits several papers; its arXiv number says which")
        paper = alike[0] if alike else found.setdefault(" ".join(key), _paper(citation))
        _note(paper, citation, file, name)
    return list(found.values())


def _paper(citation: re.Match[str]) -> Paper:
    return Paper(citation["authors"], citation["year"], number=citation["number"] or "")


def _note(paper: Paper, citation: re.Match[str], file: str, name: str) -> None:
    quoted = re.search(r'"([^"]+)"', citation["about"])
    title = quoted[1] if quoted else PLACES.sub("", citation["about"]).strip(" ,:()")
    title = title if title[:1].isupper() else ""  # the sentence goes on
    paper.title = max(paper.title, title, key=len)
    names = citation["authors"].removesuffix(",")
    paper.authors = max(paper.authors, names, key=lambda one: ("et al." not in one, len(one)))
    paper.files.setdefault(file, []).append(name)


def index() -> str:
    """The whole index, a table for each section."""
    by_section: dict[str, list[Paper]] = {title: [] for title in SECTIONS.values()}
    order = list(SECTIONS)
    for paper in papers():
        places = [next(place for place in order if file.startswith(place)) for file in paper.files]
        by_section[SECTIONS[min(places, key=order.index)]].append(paper)
    lines = []
    for title, listed in by_section.items():
        lines += ["", f"## {title}", "", "| paper | where |", "| --- | --- |"]
        for paper in sorted(listed, key=lambda one: (one.year, one.authors)):
            cells = ", ".join(_where(file, names) for file, names in paper.files.items())
            lines.append(f"| {_cited(paper)} | {cells} |")
    return "\n".join(lines[1:]) + "\n"


def _cited(paper: Paper) -> str:
    parts = [f"{paper.authors} {paper.year}", paper.title, paper.number and f"arXiv {paper.number}"]
    return ", ".join(part for part in parts if part)


def _where(file: str, names: list[str]) -> str:
    module = Path(file).stem
    if file.startswith("algorithms/") and (ROOT / f"docs/methods/{module}.md").is_file():
        return f"[`{file}`](methods/{module}.md)"
    things = ", ".join(f"`{name}`" for name in dict.fromkeys(names) if name)
    return f"`{file}`: {things}" if things else f"`{file}`"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by MkDocs with each page."""
    return markdown.replace(MARK, index()) if page.file.src_path == PAGE else markdown


if __name__ == "__main__":
    sys.stdout.write(index())
