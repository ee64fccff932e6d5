"""Accuracy and fairness over clients: AMP, FM, WLP and UA.

AMP, FM and WLP are Definitions 1 to 3 of Zhou et al. 2023 (FedKF), section III-B; UA is Atapour et al. 2024
(FedD2S), section IV-A.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Counts = np.ndarray[Any, Any]


def client_metrics(correct: Counts, samples: Counts) -> dict[str, float]:
    """Compute the four measures.

    Args:
        correct: [K], right predictions on each client's test part.
        samples: [K], test samples of each client, above 0. AMP weighs by them, as they are in proportion to
            all samples of a client, |D_k|.

    Returns: the measures over all these clients, of their accuracies a_k in [0, 1]:
        amp: averaged model performance, sum_k |D_k| a_k / |D|.
        fm: fairness metric, the population variance of a_k.
        wlp: worst local performance, min a_k.
        ua: user accuracy, the plain mean of a_k.
    """
    accuracy = correct / samples
    return {
        "amp": float((accuracy * samples).sum() / samples.sum()),
        "fm": float(accuracy.var()),
        "wlp": float(accuracy.min()),
        "ua": float(accuracy.mean()),
    }
