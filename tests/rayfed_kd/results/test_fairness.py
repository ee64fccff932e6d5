"""AMP, FM, WLP, UA against FedKF's Table II and by hand."""

import numpy as np
import pytest

from rayfed_kd.results.fairness import client_metrics

TABLE_TWO = [
    ((0.6, 0.7, 0.8), (0.7, 0.006667, 0.6)),
    ((0.65, 0.65, 0.8), (0.7, 0.005, 0.65)),
    ((0.7, 0.8, 0.9), (0.8, 0.006667, 0.7)),
]


@pytest.mark.parametrize(("accuracies", "expected"), TABLE_TWO)
def test_worked_examples_of_table_two(accuracies, expected):
    samples = np.array([100, 100, 100])
    found = client_metrics(np.round(np.array(accuracies) * 100).astype(int), samples)
    assert (found["amp"], found["wlp"]) == (pytest.approx(expected[0]), pytest.approx(expected[2]))
    assert found["fm"] == pytest.approx(expected[1], abs=1e-6)


def test_amp_weighs_by_samples_and_ua_does_not():
    """1/1 and 1/3: AMP (1 + 1) / 4 = 0.5; UA (1 + 1/3) / 2 = 2/3."""
    found = client_metrics(np.array([1, 1]), np.array([1, 3]))
    assert found["amp"] == pytest.approx(0.5)
    assert found["ua"] == pytest.approx(2 / 3)
