"""Evaluates composites on a host: several models that a method lets predict together."""

from __future__ import annotations

from typing import Any, cast

import torch

from rayfed_kd.cluster.engine.evaluating import ModelEvaluation
from rayfed_kd.protocol import Composing, Evaluated, Method, Predictor


class CompositeEvaluation(ModelEvaluation):
    """Evaluates composites as well."""

    def frozen(self, evaluated: Evaluated) -> Predictor:
        """A model, or models that predict together, in eval mode: images to logits."""
        if not evaluated.is_composite:
            return super().frozen(evaluated)
        pool, names = self._module_pool, evaluated.parts
        lengths = [pool.lengths[name] for name in names]
        lengths.append(len(evaluated.vector) - sum(lengths))
        # Copies, as kernels choose their code by alignment.
        *vectors, numbers = (vector.clone() for vector in torch.split(evaluated.vector, lengths))
        parts = [pool.lend(*pair).freeze() for pair in zip(names, vectors, strict=True)]
        return cast(Composing, self._setting.method).composed(parts, numbers.to(pool.device))


def evaluation_of(method: Method[Any, Any]) -> type[ModelEvaluation]:
    """What evaluates a method's models: composites as well only if it says how they predict."""
    return CompositeEvaluation if hasattr(method, "composed") else ModelEvaluation
