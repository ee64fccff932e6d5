"""Accuracy and fairness over clients: AMP, FM, WLP and UA.

AMP, FM and WLP are Definitions 1 to 3 of Zhou et al. 2023 (FedKF), section III-B; UA is Atapour et al. 2024
(FedD2S), section IV-A.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def rounds_to(values: Sequence[float | None], target: float) -> int | None:
    """The first round whose value reaches a target.

    Args:
        values: a value per round from 1 on; None where nothing was evaluated.
        target: the value to reach.

    Returns: the round, from 1; None if no value is at least the target.
    """
    return next((i for i, v in enumerate(values, start=1) if v is not None and v >= target), None)


def bytes_to(values: Sequence[float | None], round_bytes: Sequence[int], target: float) -> int | None:
    """Bytes of all rounds up to the first one whose value reaches a target.

    Args:
        values: a value per round from 1 on; None where nothing was evaluated.
        round_bytes: bytes of each round, equally many.
        target: the value to reach.

    Returns: the bytes; None if no value is at least the target.

    Raises:
        ValueError: there are not as many bytes as values.
    """
    if len(values) != len(round_bytes):
        raise ValueError(f"{len(values)} values and {len(round_bytes)} rounds of bytes, expected as many")
    rounds = rounds_to(values, target)
    return None if rounds is None else sum(round_bytes[:rounds])
