"""The metrics that a recipe names under `evaluation.metrics`, as objects, and their values as rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from rayfed_kd.errors import RayfedError, RecipeError, RunError, shown
from rayfed_kd.recipe.registry import Registry, blame, options_of
from rayfed_kd.recipe.roles import METRIC, Better, better_of
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.sections.evaluation import MetricRecipe

METRICS = Registry(
    {
        "macro_f1": "rayfed_kd.setting.built_in_metrics:macro_f1",
        "top_k_accuracy": "rayfed_kd.setting.built_in_metrics:top_k_accuracy",
        "calibration_error": "rayfed_kd.setting.built_in_metrics:calibration_error",
        "negative_log_likelihood": "rayfed_kd.setting.built_in_metrics:negative_log_likelihood",
    },
    role=METRIC,
)
TRIED = 20  # made-up samples of each class, by which metrics are tried


@dataclass(frozen=True)
class Metric:
    """A metric with its options.

    Attributes:
        title: its name in tables.
        path: where the recipe names it.
        name: what the recipe names it.
        better: which of two values is the better one.
        function: `(logits, labels, **options)`.
        options: checked.
    """

    title: str
    path: str
    name: str
    better: Better
    function: Any
    options: Mapping[str, Any]

    def value(self, logits: Tensor, labels: Tensor) -> float:
        """The metric's value, perhaps no finite number.

        Args:
            logits: [n, classes] float32.
            labels: [n] int64.
        Raises: RunError if the function gives no number; whatever it raises itself.
        """
        with torch.no_grad():
            # Copies: a function that changes them in place must not change the next one's.
            result = self.function(logits.clone(), labels.clone(), **self.options)
        if isinstance(result, Tensor) and result.dim() == 0:
            result = result.item()
        if not isinstance(result, Real) or isinstance(result, bool):
            what = f"a tensor of shape {list(result.shape)}" if isinstance(result, Tensor) else shown(result)
            raise RunError(f"gives {what}; expected a number")
        return float(result)


def make_metrics(recipe: Recipe) -> list[Metric]:
    """The recipe's metrics with their options, in its order.

    Raises: RecipeError if a name is unknown, the object is no metric, or an option is bad.
    """
    return [
        _metric(named, f"evaluation.metrics.{place}") for place, named in enumerate(recipe.evaluation.metrics)
    ]


def _metric(named: MetricRecipe, path: str) -> Metric:
    function = METRICS.find(named.name, f"{path}.name")
    taken = sorted(set(MetricRecipe.model_fields) & set(options_of(function).model_fields))
    if taken:
        raise RecipeError(
            f"{path}.name: {named.name} has an option {taken[0]}, which is the recipe's own key; rename it"
        )
    arguments = METRICS.bound(named, path).arguments
    return Metric(named.title, path, named.name, named.better or better_of(function), function, arguments)


def check_metrics(recipe: Recipe, classes: int) -> None:
    """Try every metric on made-up logits, so that one that cannot work is refused before the first round.

    Args:
        classes: those of the data.
    Raises: RecipeError
    """
    labels = torch.arange(TRIED * classes) % classes
    logits = torch.randn(len(labels), classes, generator=torch.Generator().manual_seed(0))
    for metric in make_metrics(recipe):
        tried = f"{metric.path}: {metric.name}, tried on {len(labels)} made-up samples of {classes} classes"
        try:
            value = metric.value(logits, labels)
        except RecipeError:
            raise
        except RunError as error:
            raise RecipeError(f"{tried}, {error}") from None
        except Exception as error:
            raise RecipeError(f"{tried}: {blame(error)}") from error
        if not math.isfinite(value):
            raise RecipeError(f"{tried}, gives {value}; expected a finite number")


def metric_rows(
    metrics: Sequence[Metric], round_index: int, model: str, test: str, logits: Tensor, labels: Tensor
) -> list[dict[str, Any]]:
    """The rows of the table `scores` of one model on one set of test samples.

    Args:
        metrics: the run's.
        round_index: the evaluated round.
        model: the evaluated model's name.
        test: "official" or "local": which samples these are.
        logits: [n, classes] float32.
        labels: [n] int64.
    Raises: RunError if a metric fails.
    """
    rows = []
    for metric in metrics:
        try:
            value = metric.value(logits, labels)
        except Exception as error:
            where = f"round {round_index}, metric {metric.title} of {model} on {len(labels)} test samples"
            why = str(error) if isinstance(error, RayfedError) else f"failed: {blame(error)}"
            raise RunError(f"{where} {why}") from error
        rows.append(
            {
                "round": round_index,
                "model": model,
                "metric": metric.title,
                "test": test,
                "samples": len(labels),
                "value": value,
                "better": metric.better,
            }
        )
    return rows
