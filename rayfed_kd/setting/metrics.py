"""The metrics that a recipe names under `evaluation.metrics`, as objects, and their values as rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.errors import RayfedError, RecipeError, RunError, shown
from rayfed_kd.recipe.registry import Registry, blame, in_modules, options_of
from rayfed_kd.recipe.roles import METRIC, Better, better_of, metric
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.sections.evaluation import MetricRecipe
from rayfed_kd.setting.torchmetrics_functions import classification, probabilities

# Few, and such as tables of the field have: of label skew (macro-F1), of many classes (top-k), and of the
# probabilities themselves (calibration, likelihood), which accuracies do not see. All others of torchmetrics
# have a name of their own there.
BUILT_IN = "macro_f1 top_k_accuracy calibration_error negative_log_likelihood"
METRICS = Registry(in_modules("rayfed_kd.setting", metrics=BUILT_IN), role=METRIC)
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
        """The metric's value, perhaps no finite number: NaN where a row of logits predicts nothing.

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
        # As where correct answers are counted. `argmax` and `topk` would take a row of NaN for an answer.
        predicted = bool(torch.isfinite(logits.logsumexp(dim=1)).all())
        return float(result) if predicted else math.nan


def make_metrics(recipe: Recipe) -> list[Metric]:
    """The recipe's metrics with their options, in its order.

    Raises: RecipeError if a name is unknown, the object is no metric, or an option is bad.
    """
    metrics = []
    for place, named in enumerate(recipe.evaluation.metrics):
        path = f"evaluation.metrics.{place}"
        function = METRICS.find(named.name, f"{path}.name")
        taken = sorted(set(MetricRecipe.model_fields) & set(options_of(function).model_fields))
        if taken:
            raise RecipeError(
                f"{path}.name: {named.name} has an option {taken[0]}, which is the recipe's own key; "
                "rename it"
            )
        better, options = named.better or better_of(function), METRICS.bound(named, path).arguments
        metrics.append(Metric(named.title, path, named.name, better, function, options))
    return metrics


def check_metrics(recipe: Recipe, classes: int) -> None:
    """Try every metric on made-up logits, so that one that cannot work is refused before the first round.

    Args:
        classes: those of the data.
    Raises: RecipeError
    """
    labels = torch.arange(TRIED * classes) % classes
    logits = torch.randn(len(labels), classes, generator=torch.Generator().manual_seed(0))
    for scorer in make_metrics(recipe):
        tried = f"{scorer.path}: {scorer.name}, tried on {len(labels)} made-up samples of {classes} classes"
        try:
            value, again = (scorer.value(logits, labels) for _ in range(2))
        except RecipeError:
            raise
        except RunError as error:
            raise RecipeError(f"{tried}, {error}") from None
        except Exception as error:
            raise RecipeError(f"{tried}: {blame(error)}") from error
        if not math.isfinite(value) or value != again:
            raise RecipeError(f"{tried}, gives {value}, then {again}; expected the same finite number")


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
    for scorer in metrics:
        try:
            value = scorer.value(logits, labels)
        except Exception as error:
            where = f"round {round_index}, metric {scorer.title} of {model} on {len(labels)} test samples"
            why = str(error) if isinstance(error, RayfedError) else f"failed: {blame(error)}"
            raise RunError(f"{where} {why}") from error
        rows.append(
            {
                "round": round_index,
                "model": model,
                "metric": scorer.title,
                "test": test,
                "samples": len(labels),
                "value": value,
                "better": scorer.better,
            }
        )
    return rows


@metric
def macro_f1(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over classes of F1 = 2 TP / (2 TP + FP + FN), without classes neither there nor predicted."""
    f1: Tensor = classification().multiclass_f1_score(
        logits.argmax(dim=1), labels, logits.shape[1], average="macro"
    )
    return f1


@metric
def top_k_accuracy(
    logits: Tensor,
    labels: Tensor,
    *,
    k: Annotated[int, Field(ge=1, description="how many of the largest logits count")] = 5,
) -> Tensor:
    """The share of samples whose class is among the k with the largest logits."""
    accuracy: Tensor = classification().multiclass_accuracy(
        logits, labels, logits.shape[1], average="micro", top_k=k
    )
    return accuracy


@metric(better="smaller")
def calibration_error(
    logits: Tensor,
    labels: Tensor,
    *,
    bins: Annotated[int, Field(ge=1, le=10_000, description="bins of equal width in [0, 1]")] = 15,
) -> Tensor:
    """The expected calibration error: |accuracy - mean confidence| in bins of confidence, by their samples.

    The confidence is the largest softmax probability (Guo et al. 2017, arXiv 1706.04599, equation 3).
    """
    # torchmetrics puts a confidence of exactly 1 into a bin of its own.
    error: Tensor = classification().multiclass_calibration_error(
        probabilities(logits).clamp(max=1 - 2**-53), labels, logits.shape[1], n_bins=bins, norm="l1"
    )
    return error


@metric(better="smaller")
def negative_log_likelihood(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean cross entropy, in nats."""
    return torch.nn.functional.cross_entropy(logits.to(torch.float64), labels)
