"""The metrics that come with the package, beside those of every evaluation: `evaluation.metrics` names them.

Few, and such as tables of the field have: of label skew (macro-F1), of many classes (top-k), and of the
probabilities themselves (calibration, likelihood), which accuracies do not see. All others of torchmetrics
have a name of their own there.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.recipe.roles import metric
from rayfed_kd.setting.torchmetrics_functions import classification, probabilities


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
    error: Tensor = classification().multiclass_calibration_error(
        probabilities(logits), labels, logits.shape[1], n_bins=bins, norm="l1"
    )
    return error


@metric(better="smaller")
def negative_log_likelihood(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean cross entropy, in nats."""
    return torch.nn.functional.cross_entropy(logits.to(torch.float64), labels)
