"""Which models a method wants evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rayfed_kd.errors import MisuseError, kind_of, shown


@dataclass(frozen=True)
class Evaluated:
    """A model to evaluate that is not of the recipe's architecture.

    Attributes:
        vector: the model.
        architecture: its name among the method's `architectures()`.
    """

    vector: Tensor
    architecture: str


@dataclass(frozen=True)
class Completing(Evaluated):
    """The server's part of a model whose first layers are each client's own: evaluated behind all of them.

    `Method.completed` puts the two together.
    """


@dataclass(frozen=True)
class Personal:
    """Stands for every client's own model, which `Method.personal` gives."""


PERSONAL = Personal()
Evaluable = Tensor | Evaluated | Personal


def shared_vectors(models: Mapping[str, Evaluable]) -> dict[str, Tensor]:
    """The vectors of those models that the server has."""
    vectors = {}
    for name, model in models.items():
        if isinstance(model, Tensor):
            vectors[name] = model
        elif isinstance(model, Evaluated):
            vectors[name] = model.vector
    return vectors


def check_evaluated(models: Any, lengths: Mapping[str, int]) -> None:
    """Check what `Method.evaluated` gave.

    Args:
        models: that.
        lengths: architecture -> how many numbers its vectors have.
    Raises: MisuseError naming the model, what it is, and what was expected.
    """
    if not isinstance(models, Mapping):
        raise MisuseError(
            f"evaluated gave {kind_of(models)}; expected models by name, as {{'global': vector}}"
        )
    for name, model in models.items():
        if not isinstance(name, str) or not name:
            raise MisuseError(f"evaluated names a model {shown(name)}; expected a text")
        if not isinstance(model, Personal):
            check_model(model, lengths, f"evaluated gave {name!r}")


def check_model(model: Any, lengths: Mapping[str, int], what: str) -> None:
    """Check that a model to evaluate is a vector of its architecture.

    Args:
        model: a vector, which is of the architecture "model", or an `Evaluated`.
        lengths: as in `check_evaluated`.
        what: who gave it, for the message.
    Raises: MisuseError
    """
    vector, name = (model.vector, model.architecture) if isinstance(model, Evaluated) else (model, "model")
    if name not in lengths:
        raise MisuseError(f"{what} of the architecture {shown(name)}; there are {', '.join(sorted(lengths))}")
    if not isinstance(vector, Tensor):
        raise MisuseError(f"{what} as {kind_of(vector)}; expected the {lengths[name]} floats of {name!r}")
    if vector.shape != (lengths[name],) or not vector.is_floating_point() or vector.element_size() < 4:
        raise MisuseError(
            f"{what} as {vector.dtype} {list(vector.shape)}; expected the {lengths[name]} floats of {name!r}"
        )
