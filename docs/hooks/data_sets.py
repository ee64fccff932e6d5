"""MkDocs hook: the page of data sets, made of what is known of each source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# MkDocs imports a hook with its folder on the path.
from reference import markdown_table

from rayfed_kd.data import SOURCES
from rayfed_kd.data.sources.image_sets import source_facts

PAGE = "reference/data-sets.md"
MARK = "<!-- generated: data sets -->"


def sections() -> str:
    """A section for each named set, then what the other sources read."""
    listed = [source_facts(name) for name in SOURCES]
    named = [part for facts in listed if "files" in facts for part in _section(facts)]
    others = [(f"`{facts['name']}`", facts["summary"]) for facts in listed if "files" not in facts]
    return "\n\n".join([*named, "## Other sources", markdown_table([("source", "what it reads"), *others])])


def _section(facts: dict[str, Any]) -> Iterator[str]:
    yield f"## {facts['name']}"
    yield facts["summary"]
    reads = [f"- It reads `{layout}`" for layout in facts["reads"]]
    yield "\n".join([f"- Size: {facts['size']}.", f"- Licence: {facts['licence']}.", *reads])
    files = [(f"`{address}`", md5 or "") for address, md5 in facts["files"].items()]
    yield markdown_table([("address", "MD5"), *files])


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by MkDocs with each page's Markdown."""
    return markdown.replace(MARK, sections()) if page.file.src_uri == PAGE else markdown
