"""Files of a run's folder, read back: damage is one message that names the file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rayfed_kd.errors import DataError, shortened


def read_json(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file.

    Args:
        path: a file that this project wrote.

    Returns: the mapping; empty if there is no such file, as of a run that was killed.

    Raises:
        DataError: the file is damaged.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf8"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise DataError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} is damaged: expected a mapping, it holds a {type(content).__name__}")
    return content


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> Any:
    """The table in a Parquet file that this project wrote.

    Args:
        path: the file.
        columns: the columns to read; None: all.

    Returns: a pyarrow.Table.

    Raises:
        DataError: the file is damaged.
        FileNotFoundError: there is no such file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path, columns=columns)
    # An OSError as well, but no damage: `read_table` then lists the folder again.
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path} is damaged: {shortened(reason.rstrip(': '), 300)}") from None
