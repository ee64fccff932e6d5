"""The recipes, studies and search spaces that come with the package, by their names.

A name is the path below configs/ without its suffix, as `fedkf/mnist` or `tune/fedkf`. The folder may be left
out where one file of the kind has the name: `fedper` is `baselines/fedper`. A file on disk wins over a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from textwrap import shorten
from typing import Literal

from rayfed_kd.errors import RecipeError, nearest

# In the repository a link to configs/; a wheel has the files themselves.
FOLDER = Path(__file__).with_name("configs")
Kind = Literal["recipe", "study", "space"]
KINDS_BY_FOLDER: Mapping[str, Kind] = {"compare": "study", "claims": "study", "tune": "space"}


def shipped_files(*kinds: Kind) -> dict[str, Path]:
    """Name -> file of everything of some kinds, sorted by name.

    Args:
        kinds: recipe, study (what `compare` takes), space (what `tune --space` takes).
    """
    files = {path.relative_to(FOLDER).with_suffix("").as_posix(): path for path in FOLDER.rglob("*.yaml")}
    chosen = {name for name in files if KINDS_BY_FOLDER.get(name.split("/")[0], "recipe") in kinds}
    return {name: files[name] for name in sorted(chosen)}


def find_file(source: str | Path, *kinds: Kind) -> Path:
    """The file behind a path or a name.

    Args:
        source: a file's path, or the name of one that comes with the package.
        kinds: what it may be, as in `shipped_files`.

    Raises:
        RecipeError: there is no such file, or several have the name. The message does not name the source.
    """
    path = Path(source)
    try:
        on_disk = path.is_file()
    except OSError:  # whoever reads it says why it cannot be read
        return path
    if on_disk:
        return path
    if (path / "config.yaml").is_file():
        raise RecipeError(
            f"this is a run's folder; expected a file, as its recipe {path / 'config.yaml'}. "
            "`rayfed-kd resume` goes on with the run"
        )
    files, name = shipped_files(*kinds), path.as_posix()
    if name in files:
        return files[name]
    namesakes = [full for full in files if last_part(full) == name]
    if len(namesakes) == 1:
        return files[namesakes[0]]
    kind = " or ".join(kinds)
    if namesakes:
        raise RecipeError(f"no such {kind} file, and several have this name: {', '.join(namesakes)}")
    if hint := _hint(path, files):
        raise RecipeError(f"no such {kind} file.", hint=hint)
    raise RecipeError(f"no such {kind} file; `rayfed-kd recipes` lists those that come with the package")


def _hint(path: Path, names: Iterable[str]) -> str | None:
    """The nearest file beside the path; else the nearest name, with its folder or without it."""
    siblings = [str(other) for other in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    typed = path.as_posix().removeprefix("configs/").removesuffix(".yaml")
    names = list(names)
    return nearest(str(path), siblings) or nearest(typed, [*names, *map(last_part, names)])


def last_part(name: str) -> str:
    """A name without its folder."""
    return name.rpartition("/")[2]


def header(path: Path) -> str:
    """The comment above the first key of a file, with its number signs."""
    lines = path.read_text(encoding="utf8").splitlines()
    return "\n".join(takewhile(lambda line: line.startswith("#"), lines))


def purpose(path: Path) -> str:
    """What a file is for, in a line: the first sentence of its header, cut after 110 characters."""
    text = " ".join(line.lstrip("# ") for line in header(path).splitlines())
    # The full stops of "et al.", "Fig." and "eq." end no sentence. A command after a colon is left out.
    sentence = re.split(r"(?<! al)(?<!Fig)(?<!eq)\.(?= |$)|:(?= (?:`|rayfed-kd))", text, maxsplit=1)[0]
    return shorten(sentence, 110, placeholder=" ...", break_on_hyphens=False)
