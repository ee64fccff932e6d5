"""The section `evaluation`: when, and with which metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, Field

from rayfed_kd.recipe.roles import Better
from rayfed_kd.recipe.strict import MOST, ByName, Count, Strict


def _plain_title(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,59}", text):
        raise ValueError(f"{text!r}: expected a letter, then at most 59 letters, digits and _")
    return text


class MetricRecipe(ByName):
    """One more metric of every evaluated model."""

    label: Annotated[str, AfterValidator(_plain_title)] | None = Field(
        None, description="its name in tables; null: the part of `name` behind the colon"
    )
    better: Better | None = Field(
        None, description="which of two values is the better one; null: as the metric's author says"
    )

    @property
    def title(self) -> str:
        """Its name in tables."""
        return self.label or self.name.rpartition(":")[2]


class EvaluationRecipe(Strict):
    """When and what is evaluated."""

    every: int = Field(
        1, ge=1, le=MOST, description="rounds between evaluations; the last is always evaluated"
    )
    clients: Count | None = Field(
        None, description="clients whose test parts and own models are evaluated, drawn once a run; null: all"
    )
    samples: bool = Field(True, description="draw generated samples in evaluated rounds")
    metrics: list[MetricRecipe] = Field(
        [], description="more metrics, each a name or a name with its options"
    )

    def contradictions(self) -> Iterator[str]:
        titles = [metric.title for metric in self.metrics]
        twice = next((title for title in titles if titles.count(title) > 1), None)
        if twice is not None:
            yield (
                f"two metrics are called {twice}; a label tells them apart, as "
                f"{{name: ..., label: {twice}_2}}"
            )
