"""What the names of evaluated models mean that do not say it themselves."""

from __future__ import annotations

from collections.abc import Iterable

MEANINGS = {
    "aca": "the average of the round's clients, which other methods call global",
    "oca": "the average of all clients' latest models",
    "personal": "each client's own model, on its client's test samples",
    "nearest": "each client's own features, by the nearest prototype",
}
OWN = ("personal", "nearest")  # a model for each client, where the others are one for all


def unlike_models(names: Iterable[str]) -> list[str]:
    """What to know where a table has clients' own models beside models for all clients, else nothing.

    Args:
        names: of the models that the table shows.

    Returns: at most one sentence, without its final stop.
    """
    shown = set(names)
    if not shown & set(OWN) or shown <= set(OWN):
        return []
    return [
        "differences between clients' own models and a model for all clients are not like for like: a "
        "client's own needs its own classes alone; a row of the method standalone says what such models are "
        "worth without a message"
    ]


def model_notes(names: Iterable[str]) -> list[str]:
    """A legend of the names in a table, as `["aca: the average of ...; oca: ..."]`.

    Args:
        names: of the models that the table shows.

    Returns: one sentence without its final stop; none if every name says what it is.
    """
    shown = set(names)
    legend = "; ".join(f"{name}: {meaning}" for name, meaning in MEANINGS.items() if name in shown)
    return [legend] if legend else []
