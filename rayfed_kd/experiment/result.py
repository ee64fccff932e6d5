"""The result of a run, and the types of what a run reports meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfed_kd.errors import DataError
from rayfed_kd.files import read_json

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


Event = Mapping[str, Any]
OnEvent = Callable[[Event], None]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
        folder: the run's folder.
        summary: the content of summary.json.
        tables: name -> Arrow table: rounds, metrics, clients, messages, hosts.
        models: name -> [P] float32, the shared models evaluated in the last round.
    """

    folder: Path
    summary: Mapping[str, Any]
    tables: Mapping[str, pa.Table]
    models: Mapping[str, np.ndarray[Any, Any]]


def _silent(event: Event) -> None:
    pass


def read_summary(folder: Path) -> dict[str, Any]:
    """The content of a run folder's summary.json; empty if there is none, as of a run that was killed.

    Raises: DataError if the file is damaged.
    """
    path = folder / "summary.json"
    summary = read_json(path)
    if summary and not (isinstance(summary.get("rounds"), int) and isinstance(summary.get("status"), str)):
        raise DataError(f"{path} is damaged: expected the keys status and rounds")
    return summary


def _tables(folder: Path) -> dict[str, Any]:
    from rayfed_kd.results.schemas import SCHEMAS
    from rayfed_kd.results.tables import read_table

    return {name: read_table(folder / "tables", name) for name in SCHEMAS}
