"""Metrics that a recipe names, from the logits of all test samples, joined in the samples' order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rayfed_kd.cluster.engine.calls import EvaluationResult, PersonalResult
from rayfed_kd.protocol import Array, to_tensor
from rayfed_kd.setting.metrics import make_metrics, metric_rows
from rayfed_kd.setting.setting import Setting


class Scores:
    """Computes the rows of the table `scores`.

    Args:
        setting: its recipe names the metrics.
        tell: called with a line when one of them has no finite value.
    """

    def __init__(self, setting: Setting, tell: Callable[[str], None]) -> None:
        self._setting, self._tell = setting, tell
        self._metrics = make_metrics(setting.recipe)
        self._told: set[tuple[str, str]] = set()  # (model, metric) without a finite value

    def rows(
        self, round_index: int, model: str, split: str, results: Sequence[EvaluationResult | PersonalResult]
    ) -> list[dict[str, Any]]:
        """A model's rows; `results` together have the split's samples in order."""
        logits = [result.logits for result in results if result.logits is not None]
        if not logits:  # there are no such test samples
            return []
        joined, labels = np.concatenate(logits), self._labels(split)
        # Of the official test set every client's own model sees all samples.
        labels = np.tile(labels, len(joined) // len(labels))
        rows = metric_rows(self._metrics, round_index, model, split, to_tensor(joined), to_tensor(labels))
        for row in rows:
            if not math.isfinite(row["value"]) and (model, row["metric"]) not in self._told:
                self._told.add((model, row["metric"]))
                self._tell(
                    f"metric {row['metric']} of {model} is {row['value']} in round {round_index}: the table "
                    "`scores` has it as it is, and the summary has none"
                )
        return rows

    def _labels(self, split: str) -> Array:
        if split == "local":
            labels: Array = np.asarray(self._setting.dataset.train.labels)[self._setting.tested.indices]
            return labels
        assert self._setting.dataset.test is not None  # it has samples
        return np.asarray(self._setting.dataset.test.labels)
