"""A run's summary as a table: for the screen, for `print(result)` and for a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from rayfed_kd.results.model_names import model_notes

COLUMNS = (("amp", "AMP"), ("fm", "FM"), ("wlp", "WLP"), ("ua", "UA"), ("server_accuracy", "official test"))


def summary_header() -> list[str]:
    """The titles of the table's columns."""
    return ["model", *(title for _, title in COLUMNS)]


def summary_rows(summary: Mapping[str, Any]) -> Iterator[list[str]]:
    """Two rows for each model: its last evaluation, and that of its best round.

    Args:
        summary: as `summarise` makes it.
    """
    for name, model in summary["models"].items():
        yield _row(name, model["last"])
        if model["best_round"] is not None:
            yield _row(f"{name}, best: round {model['best_round']}", model["best"])


def summary_title(summary: Mapping[str, Any]) -> str:
    """The heading of the table: how many rounds there are, and what became of the run."""
    return f"{summary['rounds']} rounds, {summary['status']}"


def summary_notes(summary: Mapping[str, Any]) -> list[str]:
    """The sentences below the table: what a reader must know of its rows."""
    judged = dict.fromkeys(model["best_by"] for model in summary["models"].values() if model["best_by"])
    titles = [dict(COLUMNS)[metric] for metric in judged]
    notes = [f"best: all of one round, that of the largest {' or '.join(titles)}"] if titles else []
    notes += model_notes(summary["models"])
    untested = untested_text(summary)
    return notes if untested is None else [*notes, untested]


def untested_text(summary: Mapping[str, Any]) -> str | None:
    """How many clients have test samples, as `9 of 10 clients have test samples`.

    Returns: None if every client has some, or no client is tested.
    """
    tested, clients = summary["tested_clients"], summary["clients"]
    if tested is None or tested == clients:
        return None
    return f"{tested} of {clients} clients {'has' if tested == 1 else 'have'} test samples"


def summary_table(summary: Mapping[str, Any]) -> Table:
    """The table for a terminal.

    Args:
        summary: as `summarise` makes it.
    """
    table = Table(title=summary_title(summary))
    for place, title in enumerate(summary_header()):
        table.add_column(title, justify="right" if place else "left")
    for row in summary_rows(summary):
        table.add_row(*map(Text, row))
    return table


def _row(name: str, values: Mapping[str, float | None]) -> list[str]:
    return [name, *(_metric_text(metric, values[metric]) for metric, _ in COLUMNS)]


def _metric_text(metric: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if metric == "fm" else f"{100 * value:.2f} %"
