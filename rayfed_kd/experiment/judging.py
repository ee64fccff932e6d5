"""What a run is judged by, in a search or by `stop`: an accuracy of an evaluated model, larger is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayfed_kd.errors import RecipeError, nearest
from rayfed_kd.results.names import metric_text, metric_unit, nearest_model
from rayfed_kd.results.scores import is_score


@dataclass(frozen=True)
class SearchMetric:
    """A metric of one of the evaluated models, the larger the better.

    Attributes:
        name: the metric's column in the table `metrics`, as amp, or its name of `score_name`.
        model: the evaluated model, as oca.
    """

    name: str
    model: str

    def __str__(self) -> str:
        return f"{self.name}/{self.model}"

    @property
    def title(self) -> str:
        """Its name with its unit, for an axis, as `amp/oca (%)`."""
        return f"{self} (%)" if metric_unit(self.name) else str(self)

    def told(self, value: float) -> str:
        """A value with its unit."""
        return metric_text(self.name, value) + metric_unit(self.name)

    def value(self, rows_by_model: Mapping[str, Mapping[str, Any]]) -> float | None:
        """The metric's value in an evaluation.

        Args:
            rows_by_model: evaluated model -> its row, as `with_scores` gives it.

        Returns: the value, in [0, 1] if it is an accuracy; None if the evaluation has none that is finite.
        """
        value: float | None = rows_by_model.get(self.model, {}).get(self.name)
        return value


def choose_metric(
    text: str | None, evaluated: Mapping[str, Sequence[str]], path: str | None = None
) -> SearchMetric:
    """The metric that a text names; the recipe's headline where it says nothing.

    Args:
        text: METRIC, METRIC/MODEL or /MODEL. Without a model it is the last one that the method lists, as
            fedkf's oca and kdia's teacher; without a metric it is the model's headline.
        evaluated: model -> its metrics, the headline first.
        path: where in the recipe it stands; None: not in a recipe.

    Raises:
        RecipeError: the recipe does not evaluate such a model, or the model has no such metric.
    """
    name, _, model = (text or "").partition("/")
    if not evaluated:
        raise RecipeError("the method evaluates no model before its first round; expected none", path)
    model = model or list(evaluated)[-1]
    if model not in evaluated:
        valid = ", ".join(evaluated)
        raise RecipeError(
            f"metric {text!r}: this recipe evaluates {valid}.", path, nearest_model(model, evaluated)
        )
    name = name or evaluated[model][0]
    if name not in evaluated[model]:
        valid = ", ".join(metric if path else f"{metric}/{model}" for metric in evaluated[model])
        if is_score(name) or name == "fm":
            valid += ". Large values are looked for: metrics whose smaller ones are better are left out"
        raise RecipeError(f"metric {text!r}: {model} has {valid}.", path, nearest(name, evaluated[model]))
    return SearchMetric(name, model)
