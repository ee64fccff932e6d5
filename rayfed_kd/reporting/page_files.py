"""Where a report's page goes, and which files it may replace."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from rayfed_kd.errors import RecipeError

NAME = "report.html"
MARK = "rayfed-kd-report"  # stands before a page's stamp in the file
HEAD = 4000  # characters of a file, among which a page has its stamp


def page_path(folders: Sequence[Path], to: Path | None) -> Path:
    """The page's file.

    Args:
        folders: what the page is about.
        to: the name that was given; None: report.html, of one folder inside it, of several in the current
            folder.
    """
    if to is not None:
        return to
    return folders[0] / NAME if len({folder.resolve() for folder in folders}) == 1 else Path(NAME)


def stamp_of(folders: Sequence[Path], page: Path) -> str:
    """What tells a page apart from one about other folders: it stays the same if all of them are moved.

    Args:
        folders: what the page is about.
        page: its file.
    """
    here = page.parent.resolve()
    places = sorted({os.path.relpath(folder.resolve(), here) for folder in folders})
    return f"{MARK} {hashlib.sha256(os.fsencode(os.linesep.join(places))).hexdigest()[:16]}"


def check_replaceable(paths: Sequence[Path], stamp: str) -> None:
    """Check that nothing is lost: a file is replaced only if it is the page of the same folders.

    Args:
        paths: the files that are to be written.
        stamp: the page's.

    Raises:
        RecipeError: one of them is there, and is another page, or none.
    """
    for path in paths:
        if path.is_file() and stamp not in path.read_text(encoding="utf8", errors="replace")[:HEAD]:
            raise RecipeError(
                f"{path} is there, and is no report about the same folders; "
                "expected another name under --to, or --force to replace it"
            )
