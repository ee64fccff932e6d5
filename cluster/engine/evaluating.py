"""Evaluates models on a host's test samples."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor

from rayfed_kd.cluster.engine.calls import EvaluationCall, EvaluationResult
from rayfed_kd.data.batches import DeviceData
from rayfed_kd.models.module_pool import ModulePool
from rayfed_kd.protocol import Composing, Evaluated, Predictor, to_array, to_tensor
from rayfed_kd.recipe.seeds import global_stream
from rayfed_kd.setting.setting import Setting

# One size on every host: with other shapes, kernels may round differently, and predictions could change.
EVALUATION_BATCH = 256


class ModelEvaluation:
    """Evaluates shared and personal models on one device.

    Args:
        setting: whose test samples.
        module_pool, data: on the device.
    """

    def __init__(self, setting: Setting, module_pool: ModulePool, data: DeviceData) -> None:
        self._setting, self._module_pool, self._data = setting, module_pool, data
        test = setting.dataset.test
        official = np.arange(0 if test is None else len(test.labels))
        # In client order, by which the server cuts the results into clients again.
        pools = {"local": setting.tested.indices, "official": official}
        self._pools = {split: torch.from_numpy(pool).to(data.place) for split, pool in pools.items()}

    def shared(self, call: EvaluationCall) -> EvaluationResult:
        """Evaluate a shared model on a stretch of test samples.

        Returns: each sample's outcome in the stretch's order, and the stretch's summed loss.
        """
        vector = to_tensor(call.vectors.resolve()[call.model], self._data.device)
        indices = self._pools[call.split][call.start : call.stop]
        return self.tested(self.frozen(Evaluated(vector, call.architecture)), call.split, indices)

    def of_client(self, client: int, split: str, model: Predictor) -> EvaluationResult:
        """Evaluate a client's own model on its own test part ("local"), or on the official test set."""
        if split == "official":
            return self.tested(model, split, self._pools[split])
        test_part = torch.from_numpy(self._setting.partition.test[client]).to(self._data.place)
        return self.tested(model, split, test_part)

    def frozen(self, evaluated: Evaluated) -> Predictor:
        """A model, or models that a method lets predict together, in eval mode: images to logits."""
        pool, names = self._module_pool, evaluated.parts
        if not evaluated.is_composite:
            return pool.lend(evaluated.architecture, evaluated.vector).freeze()
        lengths = [pool.lengths[name] for name in names]
        lengths.append(len(evaluated.vector) - sum(lengths))
        # Copies, as kernels choose their code by alignment.
        *vectors, numbers = (vector.clone() for vector in torch.split(evaluated.vector, lengths))
        parts = [pool.lend(*pair).freeze() for pair in zip(names, vectors, strict=True)]
        return cast(Composing, self._setting.method).composed(parts, numbers.to(pool.device))

    def tested(self, model: Predictor, split: str, indices: Tensor) -> EvaluationResult:
        """Each sample's outcome, in order, and the summed loss.

        A row of logits with NaN or inf predicts nothing: it counts as wrong, and as not finite. With some
        -inf, as of classes that a model rules out, it predicts one of the others.

        Args:
            model: images, normalised -> logits.
            split: "local" or "official".
            indices: [n] int64, samples of the training split, or of the official test set.
        """
        # In float64: a float32 sum over all test samples would lose digits.
        correct, finite = [], []
        loss_sum = torch.zeros((), dtype=torch.float64, device=self._data.device)
        # Only metrics that the recipe names need them: they are many times larger than the outcomes.
        all_logits: list[Tensor] | None = [] if self._setting.recipe.evaluation.metrics else None
        # What a module draws in eval mode, too, is of the seed and the samples, whichever host computes it.
        path, device = ("evaluation", split, *indices[:1].tolist()), self._data.device
        try:
            # Not in inference mode: what a module makes once and keeps is used in training as well.
            with torch.no_grad(), global_stream(self._setting.recipe.seed, *path, device=device):
                for chosen in torch.split(indices, EVALUATION_BATCH):
                    # Clients' own test parts are samples of the data set's training split.
                    images, labels = self._data.gather(chosen, "train" if split == "local" else "test")
                    logits = model(self._data.normalise(images))
                    finite.append(torch.isfinite(logits.logsumexp(dim=1)))
                    correct.append((logits.argmax(dim=1) == labels) & finite[-1])
                    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
                    loss_sum += losses.to(torch.float64).sum()
                    if all_logits is not None:
                        all_logits.append(logits)
        finally:
            self._module_pool.take_back()
        logits_array = None if all_logits is None else to_array(torch.cat(all_logits))
        right, real = to_array(torch.stack([torch.cat(correct), torch.cat(finite)]))  # one copy from a GPU
        return EvaluationResult(right, real, float(loss_sum), logits_array)
