"""MkDocs hook: docs/reference/protocol.md has every name that `rayfed_kd.protocol` exports, by its module."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections import defaultdict
from typing import Any

DEFINITIONS = (ast.ClassDef, ast.FunctionDef)
PAGE = "reference/protocol.md"
MARK = "<!-- generated: protocol -->"
PACKAGE = "rayfed_kd.protocol"
FIRST = ("method", "messages", "contexts", "evaluated", "staleness", "schedule", "clock")


def names_by_module() -> dict[str, list[str]]:
    """Module -> the names that it defines, in the module's order; "" has aliases of types and constants."""
    package = importlib.import_module(PACKAGE)
    # `import X as X`: that is how a package exports a name.
    imports = [n for n in ast.parse(inspect.getsource(package)).body if isinstance(n, ast.ImportFrom)]
    exported = sorted(alias.name for one in imports for alias in one.names if alias.name == alias.asname)
    names = defaultdict(list)
    for name in exported:
        thing = getattr(package, name)
        defined_here = inspect.isfunction(thing) or (
            inspect.isclass(thing) and thing.__module__.startswith("rayfed_kd.")
        )
        names[thing.__module__ if defined_here else ""].append(name)
    for module, defined in names.items():
        if module:
            tree = ast.parse(inspect.getsource(importlib.import_module(module)))
            lines = {node.name: node.lineno for node in tree.body if isinstance(node, DEFINITIONS)}
            defined.sort(key=lambda name: lines[name])
    order = [f"{PACKAGE}.{module}" for module in FIRST]
    return dict(
        sorted(names.items(), key=lambda item: (item[0] not in order, not item[0], _place(item[0], order)))
    )


def _place(module: str, order: list[str]) -> tuple[int, str]:
    return (order.index(module) if module in order else len(order), module)


def sections() -> str:
    """A heading and an introduction for each module, and below it mkdocstrings' mark of each name."""
    parts = []
    for module, names in names_by_module().items():
        if module:
            told = (importlib.import_module(module).__doc__ or "").strip().split("\n")[0]
            parts.append(f"## {module.rpartition('.')[2].replace('_', ' ').capitalize()}\n\n{told}")
        else:
            parts.append("## Types and constants")
        parts += [f"::: {PACKAGE}.{name}" for name in names]
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by MkDocs with each page's Markdown."""
    return markdown.replace(MARK, sections()) if page.file.src_uri == PAGE else markdown
