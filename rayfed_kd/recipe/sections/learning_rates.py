"""Learning rates that change: over the rounds of a run, and within a client's local training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from rayfed_kd.recipe.strict import MOST, Count, Strict

# Which schedules have a key.
OWNERS = {"every": ("step",), "factor": ("step", "exponential"), "least": ("cosine",), "over": ("cosine",)}


class RateSchedule(Strict):
    """A factor of the learning rate by the number of the round, epoch or step."""

    name: Literal["constant", "step", "cosine", "exponential"] = Field(description="how it falls")
    every: int | None = Field(None, ge=1, le=MOST, description="after so many it falls once more (step)")
    factor: float | None = Field(
        None, gt=0, le=1, description="what it is multiplied by when it falls (step, exponential)"
    )
    least: float | None = Field(
        None, ge=0, lt=1, description="the share of the rate that it falls to; null: 0 (cosine)"
    )
    over: Count | None = Field(
        None,
        description="so many it falls over, the warm-up with them, and then stays; null: all that there are "
        "(cosine)",
    )
    warmup: int = Field(0, ge=0, le=MOST, description="so many at the start in which it rises in equal steps")

    def contradictions(self) -> Iterator[str]:
        for key, owners in OWNERS.items():
            if getattr(self, key) is not None and self.name not in owners:
                yield f"{key} belongs to {' and '.join(owners)}, not to {self.name}"
            if getattr(self, key) is None and self.name in owners and key not in ("least", "over"):
                yield f"{self.name} needs {key}"
        if self.over is not None and self.warmup >= self.over:
            yield f"warmup = {self.warmup}: expected fewer than over, {self.over}"

    @property
    def depends_on_total(self) -> bool:
        """Whether a factor is another one where there are more rounds, epochs or steps."""
        return self.name == "cosine" and self.over is None

    def at(self, place: int, total: int) -> float:
        """The factor of one round, epoch or step; of those beyond the last it is the last one's.

        Args:
            place: its number, from 0.
            total: how many there are, the warm-up with them; cosine falls over them, or over `over`.
        """
        if place < self.warmup:
            return (place + 1) / (self.warmup + 1)
        length = max(1, (self.over or total) - self.warmup)
        past = min(place - self.warmup, length - 1)
        if self.factor is not None:  # of `step`, whose `every` is given, too, and of `exponential`
            return float(self.factor ** (past // (self.every or 1)))
        if self.name == "cosine":
            least = self.least or 0.0
            return least + (1 - least) * (1 + math.cos(math.pi * past / length)) / 2
        return 1.0


UNCHANGED = RateSchedule(name="constant")


class LearningRates(Strict):
    """How the learning rate changes; what is given is multiplied."""

    rounds: RateSchedule | None = Field(None, description="over the rounds of the run")
    epochs: RateSchedule | None = Field(None, description="over the epochs of one local training")
    steps: RateSchedule | None = Field(None, description="over the steps of one local training")


@dataclass(frozen=True)
class Pace:
    """A client's learning rate within one local training.

    Attributes:
        rates: its `epochs` and `steps` count.
        epochs: E.
        steps_per_epoch: batches of the client's samples.
        steps: of the whole local training.
    """

    rates: LearningRates
    epochs: int
    steps_per_epoch: int
    steps: int

    def factor(self, step: int) -> float:
        """The factor of the learning rate in an optimiser's step, from 0."""
        epochs, steps = self.rates.epochs or UNCHANGED, self.rates.steps or UNCHANGED
        return epochs.at(step // self.steps_per_epoch, self.epochs) * steps.at(step, self.steps)
