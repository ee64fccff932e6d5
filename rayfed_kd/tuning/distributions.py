"""Distributions of one coefficient: what a space file's entry may say, and how it is drawn from."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rayfed_kd.errors import RecipeError, nearest, shortened, shown
from rayfed_kd.recipe.yaml_documents import WHOLE_NUMBERS

MOST_WIDE = 10**18  # numbers of a randint: random streams and Python's ranges take no more than 63 bits


class Distribution(Protocol):
    """The values that one key may take."""

    @property
    def logarithmic(self) -> bool:
        """Whether pictures show it on a logarithmic axis."""
        ...

    def draw(self, stream: np.random.Generator) -> Any:
        """Draw a value; it depends on the stream alone."""
        ...

    def extremes(self) -> Sequence[Any]:
        """The values that are checked before a search: if they are valid, all are."""
        ...

    def all_values(self) -> Sequence[Any] | None:
        """All values, in order; None if they cannot be listed."""
        ...


@dataclass(frozen=True)
class Uniform:
    """A number in [low, high]."""

    low: float
    high: float
    logarithmic: bool = False

    def draw(self, stream: np.random.Generator) -> float:
        """Draw uniformly."""
        return float(stream.uniform(self.low, self.high))

    def extremes(self) -> Sequence[float]:
        """Both ends."""
        return self.low, self.high

    def all_values(self) -> None:
        """None: there are too many to list."""


@dataclass(frozen=True)
class LogUniform(Uniform):
    """A number in [low, high] whose logarithm is uniform; low is above 0."""

    logarithmic: bool = True

    def draw(self, stream: np.random.Generator) -> float:
        """Draw with a uniform logarithm."""
        value = math.exp(stream.uniform(math.log(self.low), math.log(self.high)))
        # exp(log(x)) may be a bit off x, and outside of the range.
        return min(max(value, self.low), self.high)


@dataclass(frozen=True)
class RandInt:
    """A whole number from low to high, both included."""

    low: int
    high: int
    logarithmic: bool = False

    def draw(self, stream: np.random.Generator) -> int:
        """Draw uniformly."""
        return int(stream.integers(self.low, self.high, endpoint=True))

    def extremes(self) -> Sequence[int]:
        """Both ends."""
        return self.low, self.high

    def all_values(self) -> Sequence[int]:
        """All numbers, ascending."""
        return range(self.low, self.high + 1)


@dataclass(frozen=True)
class Choice:
    """One of some values, of whatever kind."""

    values: tuple[Any, ...]
    logarithmic: bool = False

    def draw(self, stream: np.random.Generator) -> Any:
        """Draw uniformly."""
        return self.values[int(stream.integers(len(self.values)))]

    def extremes(self) -> Sequence[Any]:
        """All values: none says anything about another."""
        return self.values

    def all_values(self) -> Sequence[Any]:
        """All values, in the file's order."""
        return self.values


def parse_distribution(key: str, entry: Any) -> Distribution:
    """The distribution that a space file gives a key.

    Args:
        key: the recipe key, for the error.
        entry: as the file has it, as {"uniform": [0, 2]}.

    Raises:
        RecipeError: there is no such distribution, or its values are not what it takes.
    """
    if not isinstance(entry, Mapping) or len(entry) != 1:
        raise RecipeError(
            f"{key} = {shown(entry)}: expected one of {', '.join(_PARSERS)} with its values, "
            "as {uniform: [0, 2]}"
        )
    kind, values = next(iter(entry.items()))
    if kind not in _PARSERS:
        raise RecipeError(
            f"{key}: {shown(kind)} is no distribution; there are {', '.join(_PARSERS)}.",
            hint=nearest(str(kind), _PARSERS),
        )
    return _PARSERS[kind](f"{key}.{kind}", values)


def _parse_uniform(path: str, values: Any) -> Uniform:
    return Uniform(*_finite_range(path, values))


def _parse_loguniform(path: str, values: Any) -> LogUniform:
    low, high = _finite_range(path, values)
    if low <= 0:
        raise RecipeError(f"{path} = {shown(values)}: expected a low end above 0, which has a logarithm")
    return LogUniform(low, high)


def _parse_randint(path: str, values: Any) -> RandInt:
    low, high = _range(path, values)
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in (low, high)):
        raise RecipeError(f"{path} = {shown(values)}: expected two whole numbers")
    if not (low in WHOLE_NUMBERS and high in WHOLE_NUMBERS and high - low < MOST_WIDE):
        raise RecipeError(f"{path} = {shown(values)}: expected whole numbers of at most 18 digits")
    return RandInt(low, high)


def _parse_choice(path: str, values: Any) -> Choice:
    if not isinstance(values, list) or not values:
        raise RecipeError(f"{path} = {shown(values)}: expected a list of at least one value")
    try:
        texts = [json.dumps(value, sort_keys=True, allow_nan=False) for value in values]
    except (TypeError, ValueError):
        raise RecipeError(
            f"{path} = {shown(values)}: expected finite numbers, text, true, false, null, lists or keys"
        ) from None
    repeated = next((text for text in texts if texts.count(text) > 1), None)
    if repeated is not None:
        raise RecipeError(f"{path}: {shortened(repeated)} is listed twice; expected every value once")
    return Choice(tuple(values))


def _finite_range(path: str, values: Any) -> tuple[float, float]:
    try:
        low, high = (float(value) for value in _range(path, values))
    except OverflowError:
        low = high = math.inf
    if not math.isfinite(high - low):  # both ends, and what random streams draw from
        raise RecipeError(f"{path} = {shown(values)}: expected two finite numbers, and a finite distance")
    return low, high


def _range(path: str, values: Any) -> tuple[Any, Any]:
    numbers = isinstance(values, list) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )
    if not numbers or len(values) != 2 or not values[0] < values[1]:
        raise RecipeError(f"{path} = {shown(values)}: expected two numbers, low before high")
    return values[0], values[1]


_PARSERS: Mapping[str, Callable[[str, Any], Distribution]] = {
    "uniform": _parse_uniform,
    "loguniform": _parse_loguniform,
    "randint": _parse_randint,
    "choice": _parse_choice,
}
