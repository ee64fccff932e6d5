"""What a method gives to be looked at: models to evaluate; samples, distributions, class values to draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rayfed_kd.errors import MisuseError, counted, kind_of, shown
from rayfed_kd.models.vectors import check_vector


@dataclass(frozen=True)
class Evaluated:
    """A model to evaluate that is not of the recipe's architecture, or a composite of several.

    Attributes:
        vector: the model; of a composite its parts' vectors one after the other, and behind them any further
            numbers: `Composing.composed` says how they predict together.
        architecture: its name among the method's `architectures()`; of a composite `composite` of its parts'.
    """

    vector: Tensor
    architecture: str

    @classmethod
    def of(cls, model: Tensor | Evaluated) -> Evaluated:
        """A model as methods give it: a vector alone is of the recipe's architecture."""
        return model if isinstance(model, Evaluated) else cls(model, "model")

    @property
    def parts(self) -> list[str]:
        """The architectures of a composite's parts; of one model its own alone."""
        return self.architecture.splitlines()

    @property
    def is_composite(self) -> bool:
        """Whether it is several models that predict together, or one that may have numbers behind it."""
        return self.architecture.endswith(PART_ENDS)


PART_ENDS = "\n"  # no architecture's name has it


def composite(architectures: Iterable[str]) -> str:
    """What a composite's architecture is called: its parts' names, each with the end of a line."""
    return "".join(f"{name}{PART_ENDS}" for name in architectures)


@dataclass(frozen=True)
class Completing(Evaluated):
    """The server's part of a model whose first layers are each client's own: evaluated behind all of them.

    Each client's is a composite of its `Method.personal` and this.
    """


@dataclass(frozen=True)
class Personal:
    """Stands for every client's own model, which `Method.personal` gives."""


PERSONAL = Personal()
Evaluable = Tensor | Evaluated | Personal


def shared_vectors(models: Mapping[str, Evaluable]) -> dict[str, Tensor]:
    """The vectors of those models that the server has."""
    return {
        name: Evaluated.of(model).vector for name, model in models.items() if not isinstance(model, Personal)
    }


def check_evaluated(models: Any, lengths: Mapping[str, int], method: object) -> None:
    """Check what `Method.evaluated` gave.

    Args:
        models: that.
        lengths: architecture -> how many numbers its vectors have.
        method: which gave them.
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
            check_model(model, lengths, method, f"evaluated gave {name!r}")


def check_model(model: Any, lengths: Mapping[str, int], method: object, what: str) -> None:
    """Check that a model to evaluate is a vector of its architecture.

    Args:
        model: a vector, which is of the architecture "model", or an `Evaluated`.
        lengths, method: as in `check_evaluated`.
        what: who gave it, for the message.
    Raises: MisuseError
    """
    evaluated = Evaluated.of(model)
    vector, length = evaluated.vector, 0
    for part in evaluated.parts:
        if part not in lengths:
            names = ", ".join(sorted(lengths))
            raise MisuseError(f"{what} of the architecture {shown(part)}; there are {names}")
        length += lengths[part]
    if evaluated.is_composite and not hasattr(method, "composed"):
        raise MisuseError(f"{what} of several models; expected {type(method).__name__} to define composed()")
    if evaluated.is_composite and isinstance(vector, Tensor):
        length = max(length, vector.numel())  # a composite may have numbers behind its parts'
    check_vector(vector, length, evaluated.architecture, f"{what} as", least_bytes=4)


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


def check_shown(pictures: Any) -> None:
    """Check what `Method.shown` gave.

    Raises: MisuseError naming what is nothing to draw.
    """
    if not isinstance(pictures, Mapping):
        raise MisuseError(f"shown gave {kind_of(pictures)}; expected what to draw by name")
    for name, picture in pictures.items():
        if not isinstance(name, str) or not isinstance(picture, Shown):
            raise MisuseError(f"shown gave {kind_of(picture)} as {name!r}; expected Samples or values")
        sides, tensors = (
            (4, [picture.images]) if isinstance(picture, Samples) else (1, picture.values.values())
        )
        for tensor in tensors:
            if not isinstance(tensor, Tensor) or tensor.dim() != sides:
                what = f"{kind_of(tensor)} of shape {list(getattr(tensor, 'shape', []))}"
                raise MisuseError(
                    f"shown gave {what} in {name!r}; expected a tensor of {counted(sides, 'dimension')}"
                )
