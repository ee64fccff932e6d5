"""Search spaces: which values a recipe's keys may take in a search, from a YAML file.

# FedKF's coefficients
metric: amp/oca                                  # what is searched for; `--metric` wins
samples: 20                                      # trials; `--samples` wins
space:
  method.gamma: {uniform: [0.0, 2.0]}            # a number between the two
  method.lambda1: {loguniform: [0.001, 1.0]}     # its logarithm is uniform
  method.warmup_rounds: {randint: [0, 10]}       # a whole number, both ends included
  method.teacher: {choice: [oca, aca]}           # any values, also mappings
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field

from rayfed_kd.errors import RecipeError, naming, nearest
from rayfed_kd.recipe.loading import load_yaml
from rayfed_kd.recipe.schema import EXECUTION
from rayfed_kd.recipe.validation import validate
from rayfed_kd.seeds import numpy_stream

Coefficients = Mapping[str, Any]

# How far, where and how safely a run runs is not searched: the result is the same, or not comparable.
NOT_SEARCHED = ("rounds", "evaluation", *EXECUTION)


class Distribution(Protocol):
    """The values that one key may take."""

    @property
    def logarithmic(self) -> bool:
        """Whether pictures show it on a logarithmic axis."""
        ...

    def draw(self, stream: np.random.Generator) -> Any:
        """One of them."""
        ...

    def extremes(self) -> Sequence[Any]:
        """Those that are checked before a search: if they are valid, all are."""
        ...

    def every(self) -> Sequence[Any] | None:
        """All of them; None if they cannot be listed."""
        ...


@dataclass(frozen=True)
class Uniform:
    """A number in [low, high]."""

    low: float
    high: float
    logarithmic: bool = False

    def draw(self, stream: np.random.Generator) -> float:
        """Uniform."""
        return float(stream.uniform(self.low, self.high))

    def extremes(self) -> Sequence[float]:
        """Both ends."""
        return self.low, self.high

    def every(self) -> None:
        """Too many to list."""


@dataclass(frozen=True)
class LogUniform(Uniform):
    """A number in [low, high] whose logarithm is uniform; low is above 0."""

    logarithmic: bool = True

    def draw(self, stream: np.random.Generator) -> float:
        """Uniform in the logarithm; rounding does not leave the range."""
        drawn = math.exp(stream.uniform(math.log(self.low), math.log(self.high)))
        return min(max(drawn, self.low), self.high)


@dataclass(frozen=True)
class RandInt:
    """A whole number from low to high, both included."""

    low: int
    high: int
    logarithmic: bool = False

    def draw(self, stream: np.random.Generator) -> int:
        """Uniform."""
        return int(stream.integers(self.low, self.high, endpoint=True))

    def extremes(self) -> Sequence[int]:
        """Both ends."""
        return self.low, self.high

    def every(self) -> Sequence[int]:
        """Ascending."""
        return range(self.low, self.high + 1)


@dataclass(frozen=True)
class Choice:
    """One of some values, of whatever kind."""

    values: tuple[Any, ...]
    logarithmic: bool = False

    def draw(self, stream: np.random.Generator) -> Any:
        """Uniform."""
        return self.values[int(stream.integers(len(self.values)))]

    def extremes(self) -> Sequence[Any]:
        """All."""
        return self.values

    def every(self) -> Sequence[Any]:
        """As listed."""
        return self.values


class _SpaceFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    space: dict[str, Any] = Field(description="recipe key -> the values it may take")
    metric: str | None = Field(None, description="METRIC or METRIC/MODEL, as amp/oca")
    samples: int | None = Field(None, ge=1, description="number of trials")


@dataclass(frozen=True)
class Space:
    """What is searched.

    Attributes:
        keys: recipe key -> its values, in the file's order.
        raw: the same as the file has it.
        metric: METRIC or METRIC/MODEL; None: the recipe's headline.
        samples: number of trials; None: not said.
        source: the file.
    """

    keys: Mapping[str, Distribution]
    raw: Mapping[str, Any]
    metric: str | None = None
    samples: int | None = None
    source: str | None = None

    def draw(self, seed: int, number: int) -> dict[str, Any]:
        """The coefficients of a trial of random search: the same however many trials and keys there are.

        Args:
            seed: the search's.
            number: the trial's, from 0.
        """
        return {
            key: values.draw(numpy_stream(seed, "tune", key, number)) for key, values in self.keys.items()
        }

    def grid(self) -> Iterator[dict[str, Any]]:
        """All combinations; the last key changes fastest.

        Raises: RecipeError if a key's values cannot be listed.
        """
        listed = []
        for key, values in self.keys.items():
            found = values.every()
            if found is None:
                kind = next(iter(self.raw[key]))
                raise RecipeError(
                    f"{key}: {kind} has no list of values; expected choice or randint with --search grid",
                    source=self.source,
                )
            listed.append(found)
        for combination in itertools.product(*listed):
            yield dict(zip(self.keys, combination, strict=True))

    def check(self, accept: Callable[[Coefficients], None]) -> None:
        """Asks `accept`, which raises RecipeError, about the extreme values of every key.

        Raises: RecipeError that names the space's file.
        """
        for key, values in self.keys.items():
            for value in values.extremes():
                with naming(self.source):
                    accept({key: value})


def overrides_of(coefficients: Coefficients) -> list[str]:
    """Coefficients as a recipe's overrides; every number keeps its bits."""
    return [f"{key}={json.dumps(value)}" for key, value in coefficients.items()]


def shown(value: Any) -> str:
    """A coefficient for people."""
    return (
        f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    )


def read_space(path: str | Path) -> Space:
    """The space in a YAML file; what its keys mean is not known here (`Space.check`).

    Raises: RecipeError
    """
    path = Path(path)
    if not path.is_file():
        siblings = [str(p) for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        raise RecipeError(f"{path}: no such space file.", hint=nearest(str(path), siblings))
    with naming(path):
        try:
            raw = load_yaml(path.read_text(encoding="utf8"))
        except yaml.YAMLError as error:
            raise RecipeError(f"not YAML: {error}") from None
        return space_of(raw, str(path))


def space_of(raw: Any, source: str) -> Space:
    """The space that a file's content describes; what its keys mean is not known here (`Space.check`).

    Raises: RecipeError that names no file.
    """
    if not isinstance(raw, Mapping) or "space" not in raw:
        raise RecipeError("expected `space:` with recipe keys below it, as method.gamma: {uniform: [0, 2]}")
    file = validate(_SpaceFile, raw, owner="a space file")
    if not file.space:
        raise RecipeError("space: it is empty; expected recipe keys, as method.gamma: {uniform: [0, 2]}")
    for key in file.space:
        _check_key(key, list(file.space))
    keys = {key: _distribution(key, entry) for key, entry in file.space.items()}
    return Space(keys, file.space, file.metric, file.samples, source)


def _check_key(key: str, keys: Sequence[str]) -> None:
    first = key.partition(".")[0]
    if first in NOT_SEARCHED:
        raise RecipeError(f"{key}: {first} is the same in every trial; expected another key, as method.gamma")
    above = next((other for other in keys if key.startswith(other + ".")), None)
    if above is not None:
        raise RecipeError(f"{key}: lies below {above}, which is searched, too; expected one of the two")


def _distribution(key: str, entry: Any) -> Distribution:
    if not isinstance(entry, Mapping) or len(entry) != 1:
        raise RecipeError(
            f"{key} = {entry!r}: expected one of {', '.join(_KINDS)} with its values, as {{uniform: [0, 2]}}"
        )
    kind, values = next(iter(entry.items()))
    if kind not in _KINDS:
        raise RecipeError(
            f"{key}: {kind!r} is no distribution; there are {', '.join(_KINDS)}.",
            hint=nearest(str(kind), _KINDS),
        )
    return _KINDS[kind](f"{key}.{kind}", values)


def _uniform(path: str, values: Any) -> Uniform:
    return Uniform(*_numbers(path, values))


def _loguniform(path: str, values: Any) -> LogUniform:
    low, high = _numbers(path, values)
    if low <= 0:
        raise RecipeError(f"{path} = {values!r}: expected a low end above 0, which has a logarithm")
    return LogUniform(low, high)


def _randint(path: str, values: Any) -> RandInt:
    low, high = _pair(path, values)
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in (low, high)):
        raise RecipeError(f"{path} = {values!r}: expected two whole numbers")
    return RandInt(low, high)


def _choice(path: str, values: Any) -> Choice:
    if not isinstance(values, list) or not values:
        raise RecipeError(f"{path} = {values!r}: expected a list of at least one value")
    try:
        written = [json.dumps(value, sort_keys=True, allow_nan=False) for value in values]
    except (TypeError, ValueError):
        raise RecipeError(
            f"{path} = {values!r}: expected finite numbers, text, true, false, null, lists or keys"
        ) from None
    twice = next((text for text in written if written.count(text) > 1), None)
    if twice is not None:
        raise RecipeError(f"{path}: {twice} stands there twice; expected every value once")
    return Choice(tuple(values))


def _numbers(path: str, values: Any) -> tuple[float, float]:
    low, high = (float(value) for value in _pair(path, values))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RecipeError(f"{path} = {values!r}: expected two finite numbers")
    return low, high


def _pair(path: str, values: Any) -> tuple[Any, Any]:
    numbers = isinstance(values, list) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )
    if not numbers or len(values) != 2 or not values[0] < values[1]:
        raise RecipeError(f"{path} = {values!r}: expected two numbers, low before high")
    return values[0], values[1]


_KINDS: Mapping[str, Callable[[str, Any], Distribution]] = {
    "uniform": _uniform,
    "loguniform": _loguniform,
    "randint": _randint,
    "choice": _choice,
}
