"""What the names of evaluated models mean that do not say it themselves."""

from __future__ import annotations

from collections.abc import Iterable

MEANINGS = {
    "aca": "the average of the round's clients, which other methods call global",
    "oca": "the average of all clients' latest models",
}


def model_notes(names: Iterable[str]) -> list[str]:
    """A legend of the names in a table, as `["aca: the average of ...; oca: ..."]`.

    Args:
        names: of the models that the table shows.

    Returns: one sentence without its final stop; none if every name says what it is.
    """
    shown = set(names)
    legend = "; ".join(f"{name}: {meaning}" for name, meaning in MEANINGS.items() if name in shown)
    return [legend] if legend else []
