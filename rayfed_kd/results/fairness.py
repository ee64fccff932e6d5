"""Fairness over clients: AMP, FM, WLP (Zhou et al. 2023, section III-B) and UA (Atapour et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Counts = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ClientMetrics:
    """Over clients' accuracies a_k.

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
    """The four measures; clients without test samples are left out.

    Args:
        correct: [K] right predictions on each client's test part.
        samples: [K] its test samples.
        weights: [K] |D_k|; the test samples if not given, which are in proportion to all of a client's.
    Raises: ValueError if the shapes differ, no client has a test sample, or the tested clients' weights
        are negative or all zero.
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
    """The first round, from 1, whose value is at least `target`; None if there is none."""
    return next((i for i, v in enumerate(values, start=1) if v is not None and v >= target), None)


def bytes_to(values: Sequence[float | None], round_bytes: Sequence[int], target: float) -> int | None:
    """Bytes of all rounds up to the first whose value is at least `target`; None if there is none.

    Raises: ValueError if there are not as many bytes as values.
    """
    if len(values) != len(round_bytes):
        raise ValueError(f"{len(values)} values and {len(round_bytes)} rounds of bytes, expected as many")
    rounds = rounds_to(values, target)
    return None if rounds is None else sum(round_bytes[:rounds])
