"""MkDocs hook: the site's llms.txt, a list of all pages for language models, as llmstxt.org describes it.

Each page stands with its first sentence; the sections are those of the navigation.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

HEAD = """# rayfed-kd

> {description}

A method is one Python file; a recipe is a YAML file; `rayfed-kd COMMAND --json` prints lists for programs.
AGENTS.md in the repository has the map of the code, the commands and the rules.
"""


def first_sentence(markdown: str) -> str:
    """The first sentence of a page's first paragraph, as plain text; empty if there is no paragraph."""
    text = re.sub(r"^---\n.*?\n---\n", "", markdown, flags=re.DOTALL)
    prose = next((block for block in text.split("\n\n") if block.lstrip("\n")[:1].isalpha()), "")
    sentence = re.split(r"(?<=\.)\s|:$", " ".join(prose.split()), maxsplit=1)[0]
    return re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", sentence).replace("**", "")


def listed(entries: list[Any], folder: Path, level: int = 2) -> list[str]:
    """The lines of a navigation's entries, each `{title: page}` or `{title: entries}`."""
    lines = []
    for entry in entries:
        ((title, content),) = entry.items()
        if isinstance(content, list):
            lines += ["", f"{'#' * level} {title}", "", *listed(content, folder, level + 1)]
        else:
            sentence = first_sentence((folder / content).read_text(encoding="utf8"))
            place = content.removesuffix(".md") + ".html"
            lines.append(f"- [{title}]({place}){': ' + sentence if sentence else ''}")
    return lines


def text(config: Any) -> str:
    """The whole file.

    Args:
        config: MkDocs', or what has its keys `nav`, `docs_dir` and `site_description`.
    """
    head = HEAD.format(description=config["site_description"])
    return "\n".join([head, *listed(config["nav"], Path(config["docs_dir"]))]) + "\n"


def on_post_build(config: Any) -> None:
    """Writes the file beside the pages."""
    Path(config["site_dir"], "llms.txt").write_text(text(config), encoding="utf8")
