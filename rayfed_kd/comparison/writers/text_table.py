"""A table of texts, which each writer lays out in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TextTable:
    """Texts in rows and columns.

    Attributes:
        title: the sentence above it, without its colon.
        header: the columns' titles.
        rows: each as long as the header.
        left: how many columns stand on the left, from the first on; the others have numbers.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
