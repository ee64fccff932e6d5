"""The functions of `torchmetrics.functional.classification` by name, as metrics that a recipe may name.

The module's attributes are the metrics: `multiclass_auroc` is made when a recipe names it. They get softmax
probabilities: given logits, torchmetrics would take those that happen to lie in [0, 1] for probabilities.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Union, get_args, get_type_hints

import torch
from torch import Tensor

from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.registry import blame
from rayfed_kd.recipe.roles import metric
from rayfed_kd.recipe.torchvision_import import UNUSABLE, import_torchvision

# How functions end whose smaller values are better.
FALLING = ("calibration_error", "hamming_distance", "hinge_loss", "ranking_loss", "coverage_error", "eer")


def __getattr__(name: str) -> Callable[..., Any]:
    """The metric made of a function of torchmetrics.

    Raises: AttributeError if it has none of this name.
    """
    if name.startswith("_") or name not in classification().__all__:
        raise AttributeError(f"torchmetrics.functional.classification has no {name}")
    return _as_metric(getattr(classification(), name))


def __dir__() -> list[str]:
    return list(classification().__all__)


def classification() -> Any:
    """The module `torchmetrics.functional.classification`, which takes a second to load: when it is needed.

    Raises: RecipeError if it cannot be imported.
    """
    with suppress(*UNUSABLE):
        import_torchvision()  # torchmetrics imports torchvision, whose import may need to be mended first
    try:
        return importlib.import_module("torchmetrics.functional.classification")
    except UNUSABLE as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torchmetrics":
            why = "is missing: pip install -c constraints.txt torchmetrics"
        else:
            why = f"cannot be imported: {blame(error)}"
        raise RecipeError(f"needs torchmetrics, which {why}", path="evaluation.metrics") from None


def probabilities(logits: Tensor) -> Tensor:
    """Softmax of logits, [n, classes] float64."""
    return torch.softmax(logits.to(torch.float64), dim=1)


def _as_metric(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function `(preds, target, options...)` as a metric; `num_classes` is that of the data if not said."""
    hints = get_type_hints(function)
    _, _, *parameters = inspect.signature(function).parameters.values()
    options = [_as_option(parameter, hints[parameter.name]) for parameter in parameters]
    counts_classes = any(option.name == "num_classes" for option in options)

    @metric(better="smaller" if function.__name__.endswith(FALLING) else "larger")
    def compute(logits: Tensor, labels: Tensor, **options: Any) -> Any:
        if counts_classes and options["num_classes"] is None:
            options["num_classes"] = logits.shape[1]
        return function(probabilities(logits), labels, **options)

    arrays = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("logits", "labels")]
    # What `options_model` reads: the options of torchmetrics' function, as keywords.
    compute.__signature__ = inspect.Signature([*arrays, *options])  # type: ignore[attr-defined]
    compute.__annotations__ = {option.name: option.annotation for option in options}
    compute.__name__ = compute.__qualname__ = function.__name__
    return compute


def _as_option(parameter: inspect.Parameter, hint: Any) -> inspect.Parameter:
    # A recipe has no tensors: `thresholds`, as one, takes a number or a list there.
    kinds = tuple(kind for kind in get_args(hint) if kind is not Tensor)
    annotation, default = Union[kinds] if Tensor in get_args(hint) else hint, parameter.default  # noqa: UP007
    if parameter.name == "num_classes":
        annotation, default = int | None, None
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
