"""What `rayfed-kd recipes` prints: the recipes, studies and search spaces that come with the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rayfed_kd.recipe.shipped import KINDS_BY_FOLDER, Kind, last_part, purpose, shipped_files
from rayfed_kd.recipe.yaml_documents import load_yaml

TITLES: dict[Kind, str] = {
    "recipe": "recipes: rayfed-kd run NAME",
    "study": "studies: rayfed-kd compare NAME",
    "space": "search spaces: rayfed-kd tune RECIPE --space NAME",
}


def shipped_lines(width: int | None) -> Iterator[str]:
    """A title per kind, and a line per file: its name, a recipe's method and data, and what it is for.

    Args:
        width: columns after which a line is cut; None: no line is cut.
    """
    for kind, title in TITLES.items():
        yield title
        rows = [
            (
                last_part(name) if kind in KINDS_BY_FOLDER.values() else name,
                *_facts(kind, path),
                purpose(path),
            )
            for name, path in shipped_files(kind).items()
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            line = "  ".join(cell.ljust(columns) for cell, columns in zip(row, widths, strict=True)).rstrip()
            yield f"  {line}"[:width]


def _facts(kind: Kind, path: Path) -> tuple[str, ...]:
    """A recipe's method and data; nothing for other kinds."""
    if kind != "recipe":
        return ()
    content: dict[str, Any] = load_yaml(path.read_text(encoding="utf8"))
    return content["method"]["name"], content["data"]["name"]
