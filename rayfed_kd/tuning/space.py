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
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from rayfed_kd.errors import RecipeError, naming, nearest, shortened, shown
from rayfed_kd.recipe.loading import MOST_STEPS
from rayfed_kd.recipe.schema import EXECUTION
from rayfed_kd.recipe.seeds import numpy_stream
from rayfed_kd.recipe.validation import validate
from rayfed_kd.recipe.yaml_documents import WHOLE_NUMBERS, read_yaml

KINDS = ("uniform", "loguniform", "randint", "choice")
MOST_WIDE = 10**18  # numbers of a randint: random streams and Python's ranges take no more than 63 bits
MOST_TRIALS = 100_000  # of a search: each is a run
Coefficients = Mapping[str, Any]  # recipe key -> value

# Where and how safely a run runs does not change its result; trials of other lengths cannot be compared.
NOT_SEARCHED = ("rounds", "evaluation", "stop", *EXECUTION)


@dataclass(frozen=True)
class Distribution:
    """The values that one key may take.

    Attributes:
        kind: one of `KINDS`.
        values: of a choice all of them, else both ends. They are what is checked before a search: if they are
            valid, all are.
    """

    kind: str
    values: tuple[Any, ...]

    def draw(self, stream: np.random.Generator) -> Any:
        """Draw a value; it depends on the stream alone."""
        if self.kind == "choice":
            return self.values[int(stream.integers(len(self.values)))]
        low, high = self.values
        if self.kind == "randint":
            return int(stream.integers(low, high, endpoint=True))
        if self.kind == "uniform":
            return float(stream.uniform(low, high))
        value = math.exp(stream.uniform(math.log(low), math.log(high)))
        # exp(log(x)) may be a bit off x, and outside of the range.
        return min(max(value, low), high)

    def place(self, value: Any) -> Any:
        """Where a value lies among all: of a choice its number, from 0, else the value itself."""
        if self.kind != "choice":
            return value
        texts = [json.dumps(one, sort_keys=True) for one in self.values]  # to Python 1, 1.0, true are equal
        return texts.index(json.dumps(value, sort_keys=True))

    def all_values(self) -> Sequence[Any] | None:
        """All values, in order; None if there are too many to list."""
        if self.kind == "randint":
            return range(self.values[0], self.values[1] + 1)
        return self.values if self.kind == "choice" else None


class _SpaceFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    space: dict[str, Any] = Field(description="recipe key -> the values it may take")
    metric: str | None = Field(None, description="METRIC or METRIC/MODEL, as amp/oca")
    samples: int | None = Field(None, ge=1, description="number of trials")


@dataclass(frozen=True)
class Space:
    """What is searched.

    Attributes:
        distributions: recipe key -> its values, in the file's order.
        entries: recipe key -> the file's entry, as {"uniform": [0, 2]}.
        metric: METRIC or METRIC/MODEL; None: the recipe's headline.
        samples: number of trials; None: not said.
        source: the file; None if there is none.
    """

    distributions: Mapping[str, Distribution]
    entries: Mapping[str, Any]
    metric: str | None = None
    samples: int | None = None
    source: str | None = None

    def draw(self, seed: int, number: int) -> dict[str, Any]:
        """Draw the coefficients of one trial of random search.

        A value depends on seed, number and key alone, and not on how many trials and keys there are.

        Args:
            seed: the search's seed.
            number: the trial's number, from 0.
        """
        return {
            key: distribution.draw(numpy_stream(seed, "tune", key, number))
            for key, distribution in self.distributions.items()
        }

    def grid(self) -> Iterator[dict[str, Any]]:
        """All combinations of all keys' values; the last key changes fastest.

        Raises:
            RecipeError: a key's values cannot be listed.
        """
        values_by_key = []
        for key, distribution in self.distributions.items():
            values = distribution.all_values()
            if values is None:
                raise RecipeError(
                    f"{key}: {distribution.kind} has no list of values; expected choice or randint with "
                    "--search grid",
                    source=self.source,
                )
            values_by_key.append(values)
        number = math.prod(map(len, values_by_key))
        if number > MOST_TRIALS:  # counted before they are made: they would fill the memory
            fault = f"a grid of {number:,} combinations; expected {MOST_TRIALS:,} at most"
            raise RecipeError(fault, source=self.source)
        for combination in itertools.product(*values_by_key):
            yield dict(zip(self.distributions, combination, strict=True))

    def with_seeds(self, seeds: Sequence[int]) -> Space:
        """The same space, and the recipe's seed as a choice of these."""
        values = {**self.distributions, "seed": Distribution("choice", tuple(seeds))}
        return replace(self, distributions=values, entries={**self.entries, "seed": {"choice": [*seeds]}})

    def check(self, accept: Callable[[Coefficients], None]) -> None:
        """Check the extreme values of every key, each by itself.

        Args:
            accept: raises RecipeError if the recipe cannot be run with the coefficients.

        Raises:
            RecipeError: what `accept` raised, with the space's file.
        """
        for key, distribution in self.distributions.items():
            for value in distribution.values:
                with naming(self.source):
                    accept({key: value})


def coefficient_overrides(coefficients: Coefficients) -> list[str]:
    """Coefficients as a recipe's overrides, KEY=VALUE; every number keeps its bits."""
    return [f"{key}={json.dumps(value)}" for key, value in coefficients.items()]


def coefficient_text(value: Any) -> str:
    """A coefficient for readers: a number with four significant digits, a text as it is, else JSON."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)


def read_space(path: str | Path | Mapping[str, Any]) -> Space:
    """Read a space file. Whether its keys go with a recipe is not known here: see `Space.check`.

    Args:
        path: a YAML file, the name of a space that comes with the package, or what such a file holds.

    Raises:
        RecipeError: there is no such file, or it is no space file; the message names the file.
    """
    if isinstance(path, Mapping):
        return parse_space(path, None)
    with naming(path):
        return parse_space(read_yaml(path, "space"), str(path))


def parse_space(content: Any, source: str | None) -> Space:
    """The space that a file's content describes.

    Args:
        content: the YAML document.
        source: the file's name; None if there is none.

    Raises:
        RecipeError: it is no space; the message does not name the file.
    """
    if not isinstance(content, Mapping) or "space" not in content:
        raise RecipeError("expected `space:` with recipe keys below it, as method.gamma: {uniform: [0, 2]}")
    file = validate(_SpaceFile, content, owner="a space file")
    if not file.space:
        raise RecipeError("space: it is empty; expected recipe keys, as method.gamma: {uniform: [0, 2]}")
    for key in file.space:
        _check_key(key, file.space)
    distributions = {key: _parse_distribution(key, entry) for key, entry in file.space.items()}
    return Space(distributions, file.space, file.metric, file.samples, source)


def _check_key(key: str, keys: Collection[str]) -> None:
    section, *steps = key.split(".")
    if not all((section, *steps)) or len(steps) >= MOST_STEPS:
        raise RecipeError(f"{shown(key)} is no recipe key; expected one, as method.gamma")
    if section in NOT_SEARCHED:
        raise RecipeError(
            f"{key}: {section} is the same in every trial; expected another key, as method.gamma"
        )
    above = itertools.accumulate((section, *steps[:-1]), "{}.{}".format) if steps else ()
    parent = next((other for other in above if other in keys), None)
    if parent is not None:
        raise RecipeError(f"{key}: lies below {parent}, which is searched, too; expected one of the two")


def _parse_distribution(key: str, entry: Any) -> Distribution:
    if not isinstance(entry, Mapping) or len(entry) != 1:
        raise RecipeError(
            f"{key} = {shown(entry)}: expected one of {', '.join(KINDS)} with its values, "
            "as {uniform: [0, 2]}"
        )
    kind, values = next(iter(entry.items()))
    if kind not in KINDS:
        raise RecipeError(
            f"{key}: {shown(kind)} is no distribution; there are {', '.join(KINDS)}.",
            hint=nearest(str(kind), KINDS),
        )
    expected = _fault_of_choice(values) if kind == "choice" else _fault_of_range(kind, values)
    if expected is not None:
        raise RecipeError(f"{key}.{kind} = {shown(values)}: expected {expected}")
    numbers = kind in ("uniform", "loguniform")
    return Distribution(kind, tuple(float(value) for value in values) if numbers else tuple(values))


def _fault_of_choice(values: Any) -> str | None:
    """What a choice's values should have been; None if they are right."""
    if not isinstance(values, list) or not values:
        return "a list of at least one value"
    try:
        texts = [json.dumps(value, sort_keys=True, allow_nan=False) for value in values]
    except (TypeError, ValueError):
        return "finite numbers, text, true, false, null, lists or keys"
    repeated = next((text for text, number in Counter(texts).items() if number > 1), None)
    return None if repeated is None else f"every value once; {shortened(repeated)} is listed twice"


def _fault_of_range(kind: str, values: Any) -> str | None:
    """What both ends should have been; None if they are right."""
    numbers = isinstance(values, list) and all(type(value) in (int, float) for value in values)
    if not numbers or len(values) != 2 or not values[0] < values[1]:
        return "two numbers, low before high"
    low, high = values
    if kind == "randint":
        if not all(isinstance(value, int) for value in values):
            return "two whole numbers"
        valid = low in WHOLE_NUMBERS and high in WHOLE_NUMBERS and high - low < MOST_WIDE
        return None if valid else "whole numbers of at most 18 digits"
    try:
        finite = math.isfinite(float(high) - float(low))  # both ends, and what random streams draw from
    except OverflowError:
        finite = False
    if not finite:
        return "two finite numbers, and a finite distance"
    return "a low end above 0, which has a logarithm" if kind == "loguniform" and low <= 0 else None
