"""What a report is made of: sections of tables, pictures and text; nothing of HTML or Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rayfed_kd.report.pictures import Picture
from rayfed_kd.report.reading import Run


@dataclass(frozen=True)
class Table:
    """Text in rows.

    Attributes:
        left: so many columns hold words, the first one names the row; the others hold numbers.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        legend: name -> look, of all its pictures.
        images: title -> PNG in base64, drawn by the run.
        folded: title -> text shown as it is, on demand.
    """

    heading: str
    notes: Sequence[str] = ()
    tables: Sequence[Table] = ()
    legend: Mapping[str, int] = field(default_factory=dict)
    pictures: Sequence[Picture] = ()
    images: Mapping[str, str] = field(default_factory=dict)
    folded: Mapping[str, str] = field(default_factory=dict)


def looks_of(runs: Sequence[Run]) -> dict[str, int]:
    """Series -> look; the seeds of a row share one."""
    names = [
        series(runs, run, model)
        for run in runs
        for model in sorted(set(run.tables["metrics"]["model"].to_pylist()))
    ]
    return {name: look for look, name in enumerate(dict.fromkeys(names))}


def series(runs: Sequence[Run], run: Run, model: str) -> str:
    if len({other.group for other in runs}) == 1:
        return model
    return run.group if len(run.summary["models"]) == 1 else f"{run.group}, {model}"
