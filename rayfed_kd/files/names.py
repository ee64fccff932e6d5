"""Names of files and folders: paths as a user writes them, and safe names made of labels."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from rayfed_kd.errors import shown

MOST_BYTES_IN_NAME = 255  # of a file or folder, on all usual file systems


def path_fault(text: str) -> str | None:
    """Why a text can be no path on this machine, whatever lies there; None if it can.

    Args:
        text: as the user wrote it, perhaps with a `~` at its beginning.
    """
    if not text or "\0" in text:
        return f"{shown(text)} {'has a zero byte' if text else 'is no path'}"
    try:
        longest = max((len(part.encode()) for part in Path(text).parts), default=0)
    except UnicodeEncodeError:
        return f"{shown(text)} is not UTF-8"
    if longest > MOST_BYTES_IN_NAME:
        return f"{shown(text)} has a name of {longest} bytes; expected at most {MOST_BYTES_IN_NAME}"
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        return f"{shown(text)}: there is no such user"
    try:
        path.stat()
    except OSError as error:
        # Others, such as a file that is not there, are no fault of the text.
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            return f"{shown(text)}: {os.strerror(error.errno)}"
    return None


def plain_folder(text: str) -> str:
    """A folder that a user named, with `~` replaced, without `..`, and absolute if it begins with `-`.

    A folder `a/../x` is `x` for us, and none for the operating system as long as there is no `a`. A command
    that we name, as `report -x`, would take `-x` for an option.

    Args:
        text: a path in which `path_fault` finds nothing.
    """
    folder = Path(text).expanduser()
    return str(folder.resolve() if ".." in folder.parts or text.startswith("-") else folder)


def file_name(label: str) -> str:
    """A label as one part of a path: it names a file or folder here, and never one elsewhere.

    Args:
        label: any text.

    Returns: the label with `-` for every run of other characters than letters, digits, `.`, `_` and `-`.
    """
    name = re.sub(r"[^0-9A-Za-z._-]+", "-", label)
    return name if name.strip(".") else f"-{name}"  # "", "." and ".." are the folder itself or its parent
