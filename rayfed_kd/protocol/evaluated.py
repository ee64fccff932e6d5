"""Which models a method wants evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


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
