"""The files of the user's own modules, and of those that these import: what the user may edit."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path


def own_files(modules: Iterable[str]) -> dict[str, Path]:
    """The files of those of these modules that are the user's own, and of all such that they import.

    Returns: module -> file, by name.
    """
    waiting, files = list(modules), dict[str, Path]()
    while waiting:
        module = waiting.pop()
        if module not in files and (file := own_file(module)) is not None:
            files[module] = file
            waiting += _imported(module, file)
    return dict(sorted(files.items()))


def own_file(module: str) -> Path | None:
    """The file of a module of the user's own; None: none is found, or it is an installed package's."""
    top, file = module.partition(".")[0], None
    if top in ("rayfed_kd", *sys.stdlib_module_names):
        return None
    for name in dict.fromkeys((top, module)):  # to look for a package's part would import the package
        try:
            spec = find_spec(name)
        except Exception:  # of a text that is no module's name, or of a package's: who imports it says so
            return None
        file = None if spec is None or spec.origin is None else Path(spec.origin)
        # Folders of packages that have a version.
        if file is not None and {"site-packages", "dist-packages"}.intersection(file.parts):
            return None
    return file if file is not None and file.suffix == ".py" else None


def _imported(module: str, file: Path) -> Iterator[str]:
    """Names that a module's imports may mean, wherever they stand in it; some are no module's."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # who imports it says so
        return
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # As many dots as there are levels: one is the module's own package.
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            start = ".".join(filter(None, [*base, node.module]))
            names = [start, *(f"{start}.{alias.name}".lstrip(".") for alias in node.names)]
        else:
            continue
        for name in names:  # a package's own file runs, too
            yield from accumulate(name.split("."), lambda prefix, part: f"{prefix}.{part}")
