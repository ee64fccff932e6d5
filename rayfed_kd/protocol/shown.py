"""What a method may give to be drawn: generated samples, distributions, values per class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rayfed_kd.errors import MisuseError, kind_of


@dataclass(frozen=True)
class Samples:
    """Generated samples for people to look at.

    Attributes:
        images: [n, c, h, w] float32 in [0, 1].
        labels: [n] int64, the class that the teacher predicts.
    """

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Distribution:
    """Values whose spread is to be seen.

    Attributes:
        values: series -> [n], any n; without a value in any series nothing is drawn.
        quantity: what they are, with the unit.
    """

    values: Mapping[str, Tensor]
    quantity: str


@dataclass(frozen=True)
class ClassValues:
    """One value per class.

    Attributes:
        values: series -> [classes].
        quantity: what they are, with the unit.
    """

    values: Mapping[str, Tensor]
    quantity: str


Shown = Samples | Distribution | ClassValues


def check_shown(shown: Any) -> None:
    """Check what `Method.shown` gave.

    Raises: MisuseError naming what is nothing to draw.
    """
    if not isinstance(shown, Mapping):
        raise MisuseError(f"shown gave {kind_of(shown)}; expected what to draw by name")
    for name, one in shown.items():
        if not isinstance(name, str) or not isinstance(one, Shown):
            raise MisuseError(f"shown gave {kind_of(one)} as {name!r}; expected Samples or values")
