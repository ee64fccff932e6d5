"""Evaluation of shared models and of clients' own models.

A shared model sees every test sample once; its correct predictions are then counted by client. A client's
own model sees its client's test part, in one call on a host that has or fetches the client's state. It is
evaluated again only after a step has changed that state. A server's part behind each client's first layers
is evaluated in one call per client. Metrics that the recipe names are computed here, from the logits of all
test samples, joined in the samples' order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rayfed_kd.cluster.engine.calls import (
    EvaluationCall,
    EvaluationResult,
    PersonalCall,
    PersonalResult,
    SharedPart,
)
from rayfed_kd.cluster.engine.interface import Engine
from rayfed_kd.cluster.server.client_records import ClientRecord
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

# Test samples in a call. Fixed, so that the loss is summed to the same bits on any number of hosts.
STRETCH = 2048

Rows = list[dict[str, Any]]
Started = dict[tuple[str, str], list[Future[EvaluationResult]]]
Completed = dict[str, dict[int, Future[PersonalResult]]]
Own = dict[int, tuple[int, Future[PersonalResult]]]  # client -> its state's version, its model's result


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
        self._engine, self._tell = engine, tell
        self._metrics = make_metrics(setting.recipe)
        self._told: set[tuple[str, str]] = set()  # (model, metric) without a finite value
        self._dataset, self._test_parts = setting.dataset, setting.tested
        test = setting.dataset.test
        official = 0 if test is None else len(test.labels)
        sizes, drawn = self._test_parts.sizes, setting.evaluated_clients.tolist()
        # Without the clients that have no test samples: accuracies are divided by these counts.
        tested = np.flatnonzero(sizes)
        self._counts = dict(zip(tested.tolist(), sizes[tested].tolist(), strict=True))
        self._lengths = {"official": official, "local": len(self._test_parts.indices)}
        self._own_split = setting.recipe.partition.test
        self._own_counts = dict.fromkeys(drawn, official) if self._own_split == "official" else self._counts
        # client -> state version and result of its own model's last evaluation
        self._own_known: dict[int, tuple[int, PersonalResult]] = {}

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
        started = self._start(models, handle)
        completed = self._start_completed(models, handle, records)
        broken = {name for name, vector in vectors.items() if not bool(torch.isfinite(vector).all())}
        personal = any(isinstance(model, Personal) for model in models.values())
        own = self._start_own(records) if personal else {}
        return Evaluation(
            [future for futures in started.values() for future in futures]
            + [future for futures in completed.values() for future in futures.values()]
            + [future for _, future in own.values()],
            lambda: self._rows(round_index, models, started, completed, own, broken),
        )

    def _rows(
        self,
        round_index: int,
        models: Mapping[str, Evaluable],
        started: Started,
        completed: Completed,
        own: Own,
        broken: Set[str],
    ) -> dict[str, Rows]:
        """Rows of the tables by name; waits for what was started.

        Args:
            broken: names of the shared models whose weights are not finite.
        """
        # This runs in the writer's thread, and `_start_own` reads `_own_known` in the round's thread. They
        # never overlap: the loop waits for this evaluation before it starts the next one.
        for client, (version, future) in own.items():
            self._own_known[client] = (version, future.result())
        metrics: Rows = []
        clients: Rows = []
        scores: Rows = []
        for name, model in models.items():
            if isinstance(model, Personal) or name in completed:
                if isinstance(model, Personal):
                    results = {client: self._own_known[client][1] for client in self._own_counts}
                else:
                    results = {client: future.result() for client, future in completed[name].items()}
                correct = {client: result.correct for client, result in results.items()}
                not_finite = sum(not result.finite for result in results.values())
                rows = _client_rows(round_index, name, self._own_counts, correct)
                scores += self._scores(round_index, name, self._own_split, [*results.values()])
            else:
                correct, not_finite = self._by_client(started[name, "local"])
                rows = _client_rows(round_index, name, self._counts, correct)
                for split in self._lengths:
                    of_split = [future.result() for future in started[name, split]]
                    scores += self._scores(round_index, name, split, of_split)
            clients.extend(rows)
            official, finite, loss_sum = _joined(started.get((name, "official"), []))
            if name in broken or not finite.all():  # one model of all
                not_finite = max(1, len(self._own_counts))
            row = {"round": round_index, "model": name, "not_finite": not_finite}
            metrics.append({**_metrics(rows), **row})
            if (name in completed or isinstance(model, Personal)) and self._own_split == "official":
                # On the official test set the clients' mean is comparable with a server model's accuracy.
                metrics[-1]["server_accuracy"] = metrics[-1]["amp"]
            if len(official):
                metrics[-1]["server_accuracy"] = float(official.mean())
                metrics[-1]["server_loss"] = loss_sum / len(official)
        return {"metrics": metrics, "clients": clients, "scores": scores}

    def _scores(
        self, round_index: int, model: str, split: str, results: Sequence[EvaluationResult | PersonalResult]
    ) -> Rows:
        """A model's rows of the table `scores`; `results` together have the split's samples in order."""
        logits = [result.logits for result in results if result.logits is not None]
        if not logits:  # the recipe names no metrics, or there are no such test samples
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
            labels: Array = np.asarray(self._dataset.train.labels)[self._test_parts.indices]
            return labels
        assert self._dataset.test is not None  # it has samples
        return np.asarray(self._dataset.test.labels)

    def _start_completed(
        self, models: Mapping[str, Evaluable], handle: Handle, records: Mapping[int, ClientRecord]
    ) -> Completed:
        """Start the evaluations of each server's part behind each client's first layers."""
        started: Completed = {}
        for name, model in models.items():
            if isinstance(model, Completing):
                part = SharedPart(handle, name, model.architecture)
                started[name] = {
                    client: self._engine.evaluate_personal(
                        PersonalCall(client, record.state, record.version, self._own_split, part)
                    )
                    for client in self._own_counts
                    for record in [records.get(client, ClientRecord())]
                }
        return started

    def _start(self, models: Mapping[str, Evaluable], handle: Handle) -> Started:
        """Start the evaluations of all shared models on all stretches of test samples."""
        started: Started = {}
        for name, model in models.items():
            if isinstance(model, Personal | Completing):
                continue
            architecture = model.architecture if isinstance(model, Evaluated) else "model"
            for split, length in self._lengths.items():
                started[name, split] = [
                    self._engine.evaluate(
                        EvaluationCall(handle, name, architecture, split, start, min(start + STRETCH, length))
                    )
                    for start in range(0, length, STRETCH)
                ]
        return started

    def _start_own(self, records: Mapping[int, ClientRecord]) -> Own:
        """Start the evaluations of clients' own models whose state has changed since the last one."""
        started = {}
        for client in self._own_counts:
            record = records.get(client, ClientRecord())
            # -1 is no state's version, as a client without a state has version 0: each is evaluated once.
            if self._own_known.get(client, (-1, 0))[0] != record.version:
                call = PersonalCall(client, record.state, record.version, self._own_split)
                started[client] = (record.version, self._engine.evaluate_personal(call))
        return started

    def _by_client(self, futures: Sequence[Future[EvaluationResult]]) -> tuple[dict[int, int], int]:
        """A shared model's correct predictions on each client's test part, and for how many it has none.

        Args:
            futures: of stretches, in client order.
        """
        # A stretch may end inside a client's part, so stretches are joined before they are counted by client.
        pooled, finite, _ = _joined(futures)
        correct, not_finite, start = {}, 0, 0
        for client, count in self._counts.items():
            correct[client] = int(pooled[start : start + count].sum())
            not_finite += not finite[start : start + count].all()
            start += count
        return correct, not_finite


def _client_rows(round_index: int, model: str, counts: Mapping[int, int], correct: Mapping[int, int]) -> Rows:
    return [
        {
            "round": round_index,
            "client": client,
            "model": model,
            "samples": count,
            "correct": correct[client],
            "accuracy": correct[client] / count,
        }
        for client, count in counts.items()
    ]


def _metrics(rows: Rows) -> dict[str, Any]:
    empty = dict.fromkeys(("amp", "fm", "wlp", "ua", "server_accuracy", "server_loss"))
    if not rows:
        return empty
    metrics = client_metrics(
        np.array([row["correct"] for row in rows]), np.array([row["samples"] for row in rows])
    )
    return {**empty, "amp": metrics.amp, "fm": metrics.fm, "wlp": metrics.wlp, "ua": metrics.ua}


def _joined(futures: Sequence[Future[EvaluationResult]]) -> tuple[Array, Array, float]:
    """Outcomes of stretches one after the other: correct, finite, summed loss."""
    results = [future.result() for future in futures]
    if not results:
        return np.zeros(0, dtype=bool), np.zeros(0, dtype=bool), 0.0
    correct, finite = (np.concatenate([getattr(r, name) for r in results]) for name in ("correct", "finite"))
    return correct, finite, sum(r.loss_sum for r in results)
