"""Evaluation of shared models and of clients' own models.

A shared model sees every test sample once; its correct predictions are then counted by client. `own_models`
evaluates the clients' own. Metrics that a recipe names are computed from the logits of all test samples,
joined in the samples' order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rayfed_kd.cluster.engine.calls import EvaluationCall, EvaluationResult, PersonalResult
from rayfed_kd.cluster.engine.interface import Engine
from rayfed_kd.cluster.server.client_records import ClientRecord
from rayfed_kd.cluster.server.evaluating.own_models import OwnModels, StartedOwn
from rayfed_kd.protocol import (
    Array,
    Completing,
    Evaluable,
    Evaluated,
    Handle,
    Personal,
    shared_vectors,
    to_array,
    to_tensor,
)
from rayfed_kd.results.fairness import client_metrics
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


# Test samples in a call. Fixed, so that the loss is summed to the same bits on any number of hosts.
STRETCH = 2048

Rows = list[dict[str, Any]]
Started = dict[tuple[str, str], list[Future[EvaluationResult]]]


@dataclass(frozen=True)
class Evaluation:
    """An evaluation that has been started.

    Attributes:
        futures: results of its calls.
        rows: waits for them, and returns the rows of the tables `metrics`, `clients` and `scores` by name.
    """

    futures: Sequence[Future[Any]]
    rows: Callable[[], dict[str, Rows]]

    @property
    def done(self) -> bool:
        """Whether `rows` would not wait."""
        return all(future.done() for future in self.futures)

    def give_up(self) -> None:
        """Cancel the waiting: `rows` raises CancelledError unless all results have arrived."""
        for future in self.futures:
            future.cancel()


class Evaluator:
    """Evaluates models on every client's test part and on the official test set, as far as they exist.

    Args:
        setting: data, partition, and which test set clients' own models see.
        engine: runs the evaluations.
        tell: called with a line when a metric that the recipe names has no finite value.
    """

    def __init__(
        self, setting: Setting, engine: Engine, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        self._engine = engine
        # Empty where the recipe names no metrics.
        self._scores = [Scores(setting, tell)] if setting.recipe.evaluation.metrics else []
        test = setting.dataset.test
        official = 0 if test is None else len(test.labels)
        sizes, drawn = setting.tested.sizes, setting.evaluated_clients.tolist()
        # Without the clients that have no test samples: accuracies are divided by these counts.
        tested = np.flatnonzero(sizes)
        self._counts = dict(zip(tested.tolist(), sizes[tested].tolist(), strict=True))
        self._starts = np.cumsum([0, *self._counts.values()])[:-1]
        self._lengths = {"official": official, "local": len(setting.tested.indices)}
        self._own_split = setting.recipe.partition.test
        self._own_counts = dict.fromkeys(drawn, official) if self._own_split == "official" else self._counts
        self._own = OwnModels(engine, self._own_split, self._own_counts)

    def start(
        self, round_index: int, models: Mapping[str, Evaluable], records: Mapping[int, ClientRecord]
    ) -> Evaluation:
        """Start the evaluation of models as they are now.

        Args:
            round_index: the round that the rows are marked with.
            models: as `Method.evaluated` returns them.
            records: client id -> its record, for the clients' states.
        Returns: the started evaluation. The one before it must have ended.
        """
        vectors = shared_vectors(models)
        handle = self._engine.publish({name: to_array(vector) for name, vector in vectors.items()})
        shared = {name: m for name, m in models.items() if not isinstance(m, Personal | Completing)}
        started = self._start(shared, handle)
        started_own = self._own.start(models, handle, records) if len(shared) < len(models) else None
        # Minus infinity is no fault by itself: FedProto gives it to classes that nobody has shown yet.
        broken = {name for name, vector in vectors.items() if not bool((vector < math.inf).all())}
        return Evaluation(
            [future for futures in started.values() for future in futures]
            + ([] if started_own is None else started_own.futures),
            lambda: self._rows(round_index, list(models), started, started_own, broken),
        )

    def _rows(
        self,
        round_index: int,
        models: Sequence[str],
        started: Started,
        started_own: StartedOwn | None,
        broken: Set[str],
    ) -> dict[str, Rows]:
        """Rows of the tables by name; waits for what was started.

        Args:
            broken: names of the shared models whose weights are not finite.
        """
        tables: dict[str, Rows] = {"metrics": [], "clients": [], "scores": []}
        results = {} if started_own is None else self._own.results(started_own)
        for name in models:
            if name in results:
                by_split: dict[str, list[Any]] = {self._own_split: list(results[name].values())}
                rows, row = self._of_own(round_index, name, results[name])
            else:
                by_split = {split: [f.result() for f in started[name, split]] for split in self._lengths}
                rows, row = self._of_shared(round_index, name, by_split)
            if name in broken:  # one model of all
                row["not_finite"] = max(1, len(self._own_counts))
            tables["metrics"].append(row)
            tables["clients"] += rows
            for scored in self._scores:
                for split, outcomes in by_split.items():
                    tables["scores"] += scored.rows(round_index, name, split, outcomes)
        return tables

    def _of_shared(
        self, round_index: int, name: str, by_split: Mapping[str, Sequence[EvaluationResult]]
    ) -> tuple[Rows, dict[str, Any]]:
        """A shared model's rows of the table `clients`, and its row of `metrics`."""
        # A stretch may end inside a client's part, so stretches are joined before they are counted by client.
        pooled, finite, _ = _joined(by_split["local"])
        right = np.add.reduceat(pooled.astype(int), self._starts).tolist()
        correct = dict(zip(self._counts, right, strict=True))
        not_finite = int((~np.logical_and.reduceat(finite, self._starts)).sum())
        rows, row = _outcome(round_index, name, self._counts, correct)
        official, finite, loss_sum = _joined(by_split["official"])
        if not finite.all():  # one model of all
            not_finite = max(1, len(self._own_counts))
        row["not_finite"] = not_finite
        if len(official):
            row["server_accuracy"] = float(official.mean())
            row["server_loss"] = loss_sum / len(official)
        return rows, row

    def _of_own(
        self, round_index: int, name: str, results: Mapping[int, PersonalResult]
    ) -> tuple[Rows, dict[str, Any]]:
        """The rows of clients' own models in the table `clients`, and their row of `metrics`."""
        correct = {client: result.correct for client, result in results.items()}
        rows, row = _outcome(round_index, name, self._own_counts, correct)
        row["not_finite"] = sum(not result.finite for result in results.values())
        if self._own_split == "official":
            # On the official test set the clients' mean is comparable with a server model's accuracy.
            row["server_accuracy"] = row["amp"]
        return rows, row

    def _start(self, models: Mapping[str, torch.Tensor | Evaluated], handle: Handle) -> Started:
        """Start the evaluations of all shared models on all stretches of test samples."""
        started: Started = {}
        for name, model in models.items():
            architecture = Evaluated.of(model).architecture
            for split, length in self._lengths.items():
                calls = (
                    EvaluationCall(handle, name, architecture, split, start, min(start + STRETCH, length))
                    for start in range(0, length, STRETCH)
                )
                started[name, split] = [self._engine.evaluate(call) for call in calls]
        return started


def _outcome(
    round_index: int, model: str, counts: Mapping[int, int], correct: Mapping[int, int]
) -> tuple[Rows, dict[str, Any]]:
    """A model's rows of the table `clients`, and its row of `metrics`, as far as these tell it."""
    whose = {"round": round_index, "model": model}
    rows = [
        {
            **whose,
            "client": client,
            "samples": count,
            "correct": correct[client],
            "accuracy": correct[client] / count,
        }
        for client, count in counts.items()
    ]
    row = dict.fromkeys(("amp", "fm", "wlp", "ua", "server_accuracy", "server_loss")) | whose
    if rows:
        row |= client_metrics(*(np.array([entry[name] for entry in rows]) for name in ("correct", "samples")))
    return rows, row


def _joined(results: Sequence[EvaluationResult]) -> tuple[Array, Array, float]:
    """Outcomes of stretches one after the other: correct, finite, summed loss."""
    if not results:
        return np.zeros(0, dtype=bool), np.zeros(0, dtype=bool), 0.0
    correct, finite = (np.concatenate([getattr(r, name) for r in results]) for name in ("correct", "finite"))
    return correct, finite, sum(r.loss_sum for r in results)
