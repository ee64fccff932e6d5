"""What `rayfed-kd recipes` prints: the recipes, studies and search spaces that come with the package."""

from __future__ import annotations

from collections.abc import Iterator

from rayfed_kd.recipe.shipped import KINDS_BY_FOLDER, Kind, last_part, purpose, shipped_files
from rayfed_kd.recipe.yaml_documents import load_yaml

TITLES: dict[Kind, str] = {
    "recipe": "recipes: rayfed-kd run NAME",
    "study": "studies: rayfed-kd compare NAME",
    "space": "search spaces: rayfed-kd tune RECIPE --space NAME",
}


def shipped() -> Iterator[dict[str, str]]:
    """What is known of each file: its kind, name, a recipe's method and data, purpose, and the file."""
    for kind in TITLES:
        for full, path in shipped_files(kind).items():
            name = last_part(full) if kind in KINDS_BY_FOLDER.values() else full
            content = load_yaml(path.read_text(encoding="utf8")) if kind == "recipe" else {}
            facts = {key: content[key]["name"] for key in ("method", "data") if content}
            yield {"kind": kind, "name": name, **facts, "purpose": purpose(path), "file": str(path)}


def shipped_lines(width: int | None) -> Iterator[str]:
    """A title per kind, and a line per file: its name, a recipe's method and data, and what it is for.

    Args:
        width: columns after which a line is cut; None: no line is cut.
    """
    for kind, title in TITLES.items():
        yield title
        listed = (entry for entry in shipped() if entry["kind"] == kind)
        rows = [[text for fact, text in entry.items() if fact not in ("kind", "file")] for entry in listed]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            line = "  ".join(cell.ljust(columns) for cell, columns in zip(row, widths, strict=True)).rstrip()
            yield f"  {line}"[:width]
