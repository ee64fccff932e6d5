"""MkDocs hook: TeX formulas become MathML while the site is built, so that pages load no script for them."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

# What pymdownx.arithmatex (`generic: true`) makes of $...$.
INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)


def mathml(tex: str) -> str:
    """MathML of one formula.

    Raises: ValueError if the formula has a command that latex2mathml does not know.
    """
    converted = convert(" ".join(tex.split()))
    if "\\" in converted:  # latex2mathml copies what it does not know
        raise ValueError(f"formula {tex!r}: latex2mathml does not know one of its commands")
    return converted


def on_page_content(content: str, **_: Any) -> str:
    """Called by MkDocs with each page's HTML."""
    return INLINE.sub(lambda match: mathml(html.unescape(match[1])), content)
