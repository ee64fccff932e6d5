"""Metrics and evaluated models as readers see them: names, digits and units."""

from __future__ import annotations

from collections.abc import Iterable

from rayfed_kd.errors import nearest
from rayfed_kd.results.scores import is_score

TITLES = {"amp": "AMP %", "fm": "FM", "wlp": "WLP %", "ua": "UA %", "server_accuracy": "official test %"}


def metric_title(metric: str) -> str:
    """A metric's title; one that a recipe names has its own name.

    Args:
        metric: the metric's column, or a name of `score_name`.
    """
    return TITLES.get(metric, metric)


def metric_scale(metric: str) -> float:
    """What a metric's values are multiplied by to be shown: accuracies are in percent."""
    return 1.0 if metric in ("fm", "bytes") or is_score(metric) else 100.0


def metric_digits(metric: str) -> int:
    """How many digits after the point its values are shown with."""
    return 4 if metric == "fm" or is_score(metric) else 2


def metric_text(metric: str, value: float | None) -> str:
    """A value as it is shown, without its unit; "" if there is none."""
    return "" if value is None else f"{metric_scale(metric) * value:.{metric_digits(metric)}f}"


def metric_unit(metric: str) -> str:
    """What stands behind a shown value: a space and "%" if it is an accuracy, else nothing."""
    return " %" if metric_scale(metric) == 100 else ""


MEANINGS = {
    "oca": "the average of all clients' latest models",
    "personal": "each client's own model, on its test samples, or with partition.test: official on those",
    "nearest": "each client's own features, by the nearest prototype",
    "global_head": "each client's own features, by the server's head",
}
FORMER = {"aca": "global"}  # what methods called models before; others may still call theirs so
OWN = ("personal", "nearest", "global_head")  # a model for each client, where the others are one for all
# What methods of the package call a model for all; `server` completes clients' own with some of them.
ONE_FOR_ALL = {"global", "oca", "student", "teacher", "ensemble", "mentee"}


def nearest_model(name: str, names: Iterable[str]) -> str | None:
    """The model that a name was meant for: what a former name stands for, else the one most like it."""
    known = list(names)
    return FORMER[name] if FORMER.get(name) in known else nearest(name, known)


def unlike_models(names: Iterable[str]) -> list[str]:
    """What to know where a table has clients' own models beside models for all clients, else nothing.

    Args:
        names: of the models that the table shows.

    Returns: at most one sentence, without its final stop.
    """
    models = set(names)
    if not models & set(OWN) or models <= set(OWN):
        return []
    return [
        "differences between clients' own models and a model for all clients are not like for like: a "
        "client's own needs its own classes alone; a row of the method standalone says what such models are "
        "worth without a message"
    ]


def model_notes(names: Iterable[str]) -> list[str]:
    """A legend of the names in a table, as `["oca: the average of ...; personal: ..."]`.

    Args:
        names: of the models that the table shows.

    Returns: one sentence without its final stop; none if every name says what it is.
    """
    models = set(names)
    legend = "; ".join(f"{name}: {meaning}" for name, meaning in MEANINGS.items() if name in models)
    return [legend] if legend else []
