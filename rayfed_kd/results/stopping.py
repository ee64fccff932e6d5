"""A recipe's `stop`: whether a run ends before its last round, by its tables alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rayfed_kd.recipe.sections.safety import StopRecipe
from rayfed_kd.results.scores import Tables, with_scores


class StopRule:
    """Takes a run's rounds in order, and says when it ends.

    All but `seconds` is a function of the recipe, so that a run ends after the same round on every engine,
    also if it was resumed.

    Args:
        recipe: when it ends.

    Attributes:
        why: why it ends, for people; empty: it goes on.
    """

    def __init__(self, recipe: StopRecipe) -> None:
        self._recipe, self._model, self.why = recipe, recipe.model, ""
        self._best, self._without_better, self._bytes = -math.inf, 0, 0

    def take(self, tables: Tables) -> None:
        """Look at a round.

        Args:
            tables: its rows of `rounds`, `metrics` and `scores`; without one of `metrics` it was not
                evaluated, and the run goes on: the last round of a run always is.
        """
        row, evaluated = tables["rounds"][0], with_scores(tables)
        self._bytes += row["bytes_up"] + row["bytes_down"]
        if evaluated and not self.why:
            self.why = next(self._reasons(row, evaluated), "")

    def _reasons(self, row: Mapping[str, Any], evaluated: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        recipe, after = self._recipe, f"after round {row['round']}"
        if recipe.metric is not None:
            model = self._model = self._model or evaluated[-1]["model"]  # further ones may come later
            # Some models are not evaluated every time, as CCVR's: then there is no evaluation to count.
            values = [entry.get(recipe.metric) for entry in evaluated if entry["model"] == model]
            self._without_better += len(values)
            if values and values[0] is not None and values[0] > self._best:  # NaN is not
                self._best, self._without_better = values[0], 0
            name = f"{recipe.metric} of {model}"
            if recipe.at is not None and self._best >= recipe.at:
                yield f"{name} is {self._best:.4g} {after}, and stop.at = {recipe.at:g}"
            if recipe.patience is not None and self._without_better >= recipe.patience:
                yield (
                    f"{name} was no better than {self._best:.4g} in {recipe.patience} evaluation(s) {after} "
                    "(stop.patience)"
                )
        spending = {"bytes": self._bytes, "sim_seconds": row["sim_s"], "seconds": row["wall_s"]}
        for key, spent in spending.items():
            most = getattr(recipe, key)
            if most is not None and spent >= most:
                yield f"{spent:,.10g} of stop.{key} = {most:,.10g} are spent {after}"
