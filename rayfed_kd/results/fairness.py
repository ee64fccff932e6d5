"""Accuracy and fairness over clients: AMP, FM, WLP and UA.

AMP, FM and WLP are Definitions 1 to 3 of Zhou et al. 2023 (FedKF), section III-B; UA is Atapour et al. 2024
(FedD2S), section IV-A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Counts = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ClientMetrics:
    """Four measures of clients' accuracies a_k, each in [0, 1].

    Attributes:
        amp: averaged model performance, sum_k |D_k| a_k / |D|.
        fm: fairness metric, the population variance of a_k.
        wlp: worst local performance, min a_k.
        ua: user accuracy, the plain mean of a_k.
    """

    amp: float
    fm: float
    wlp: float
    ua: float


def client_metrics(correct: Counts, samples: Counts, weights: Counts | None = None) -> ClientMetrics:
    """Compute the four measures. Clients without test samples are left out.

    Args:
        correct: [K], right predictions on each client's test part.
        samples: [K], test samples of each client.
        weights: [K], |D_k|, the weights of AMP; None: the test samples, which are in proportion to all
            samples of a client.

    Returns: the measures over all tested clients.

    Raises:
        ValueError: the shapes differ, no client has a test sample, or the tested clients' weights are
            negative or all zero.
    """
    sizes = samples if weights is None else weights
    if not correct.shape == samples.shape == sizes.shape:
        raise ValueError(
            f"correct {correct.shape}, samples {samples.shape} and weights {sizes.shape} differ, expected [K]"
        )
    tested = samples > 0
    if not tested.any():
        raise ValueError("no client has a test sample")
    accuracy = correct[tested] / samples[tested]
    size = sizes[tested]
    if (size < 0).any() or not size.any():
        raise ValueError(f"weights of tested clients are {size.tolist()}, expected 0 or more, not all 0")
    return ClientMetrics(
        amp=float((accuracy * size).sum() / size.sum()),
        fm=float(accuracy.var()),
        wlp=float(accuracy.min()),
        ua=float(accuracy.mean()),
    )
