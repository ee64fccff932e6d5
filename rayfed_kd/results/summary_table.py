"""A run's summary as tables, for the screen and for `print(result)`, and the sentences below them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from rayfed_kd.errors import counted, in_words
from rayfed_kd.results.names import TITLES, metric_text, metric_unit, model_notes
from rayfed_kd.results.schemas import NOT_COVERED
from rayfed_kd.results.scores import is_score
from rayfed_kd.results.screen_table import screen_table

COLUMNS = {metric: title.removesuffix(" %") for metric, title in TITLES.items()}


def summary_tables(summary: Mapping[str, Any]) -> list[Table]:
    """A run's tables for a terminal: its models, and where the recipe names metrics, their values.

    Args:
        summary: as `summarise` makes it.
    """
    title = f"{counted(summary['rounds'], 'round')}, {summary['status']}"
    tables = [screen_table(title, ["model", *COLUMNS.values()], _model_rows(summary))]
    if scores := _score_rows(summary):
        tables.append(screen_table("", ("metric", "model", "last", "best round"), scores, left=2))
    return tables


def _model_rows(summary: Mapping[str, Any]) -> Iterator[list[str]]:
    """Two rows for each model: its last evaluation, and that of its best round."""
    for name, model in summary["models"].items():
        yield _row(name, model["last"])
        if model["best_round"] is not None:
            yield _row(f"{name}, best round {model['best_round']}", model["best"])


def _score_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """A row for each metric that the recipe names and each model: the last value, that of the best round."""
    models = summary["models"]
    names = sorted({name for model in models.values() for name in model["last"] if is_score(name)})
    return [
        [name, label, *(_metric_text(name, model[key][name]) for key in ("last", "best"))]
        for name in names
        for label, model in models.items()
        if name in model["last"]
    ]


def summary_notes(summary: Mapping[str, Any]) -> list[str]:
    """The sentences below the table: what a reader must know of its rows."""
    judged = dict.fromkeys(model["best_by"] for model in summary["models"].values() if model["best_by"])
    titles = [COLUMNS[metric] for metric in judged]
    notes = [f"best: all of one round, that of the largest {' or '.join(titles)}"] if titles else []
    notes += model_notes(summary["models"])
    notes += [f"stopped: {summary['stopped']}"] if "stopped" in summary else []
    notes += [f"diverged: {text}" for text in summary.get("diverged", ())]
    # Their means are over the other evaluations alone.
    notes += [
        f"{metric} of {name} has no finite value in {counted(count, 'evaluation')} of {model['evaluations']}"
        for name, model in summary["models"].items()
        for metric, count in model.get("undefined", {}).items()
    ]
    if bad := summary.get("bad_replies"):
        notes.append(f"{left_out(bad)} (faults.bad_replies: drop)")
    return [*notes, *privacy_notes(summary), *filter(None, [untested_text(summary)])]


def left_out(bad_replies: int | None) -> str:
    """How many bad replies a round, or a run, did without; empty: none."""
    return f"{counted(bad_replies, 'bad reply', 'bad replies')} left out" if bad_replies else ""


def privacy_notes(summary: Mapping[str, Any]) -> list[str]:
    """What epsilon is, and of whom and of what; nothing for a run without `privacy`."""
    spent = summary.get("privacy")
    if spent is None:
        return []
    values = [
        f"{what} {float(spent[column]):.4g}"
        for column, what in (
            ("epsilon", "epsilon" if spent["noise"] == "server" else "epsilon under secure aggregation"),
            ("local_epsilon", "local epsilon, for a server that sees single messages,"),
        )
        if spent[column] is not None
    ]
    return [
        f"privacy: {'; '.join(values)} at delta {spent['delta']:g}, client level ({spent['neighbours']}), "
        f"noise multiplier {spent['noise_multiplier']:g}, noise at the {spent['noise']}, "
        f"{spent['sampling']}, {counted(spent['releases'], 'release')}, {spent['accountant']}; {NOT_COVERED}"
    ]


def untested_text(summary: Mapping[str, Any]) -> str | None:
    """How many clients the metrics are of, as `9 of 10 clients have test samples`.

    Returns: None if every client has some, or none is tested as the official test set is enough.
    """
    tested, clients, drawn = map(summary.get, ("tested_clients", "clients", "drawn_clients"))
    if tested is None or tested == clients:
        return None
    if drawn is not None:
        without = f"; the other {drawn - tested} drawn have no test samples" if tested < drawn else ""
        return f"{tested:,} of {clients:,} clients are evaluated (evaluation.clients = {drawn}){without}"
    return f"{tested} of {clients} clients {'has' if tested == 1 else 'have'} test samples"


def untested_notes(summaries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A sentence, without its stop, per group of runs that test few of their clients.

    Args:
        summaries: run's name -> its summary.
    """
    texts = {name: text for name, summary in summaries.items() if (text := untested_text(summary))}
    for text in dict.fromkeys(texts.values()):
        names = [name for name in texts if texts[name] == text]
        whose = "all runs" if len(names) == len(summaries) > 1 else in_words(names)
        yield f"{whose}: {text}; the metrics over clients are of these"


def _row(name: str, values: Mapping[str, float | None]) -> list[str]:
    return [name, *(_metric_text(metric, values[metric]) for metric in COLUMNS)]


def _metric_text(metric: str, value: float | None) -> str:
    return "-" if value is None else metric_text(metric, value) + metric_unit(metric)
