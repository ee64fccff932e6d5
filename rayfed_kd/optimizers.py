"""Optimisers over a flat module: one leaf, so a step is one fused operation, and the state is explicit.

torch's functional forms, not its classes: the arithmetic is the same (a test says so), the state is a
plain mapping that a client can keep, a step costs a third, and the first one does not import torch's
compiler (1.4 seconds in every process).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from rayfed_kd.config import OptimizerRecipe
from rayfed_kd.vectors import FlatModule

ADAM_BETAS, ADAM_EPS = (0.9, 0.999), 1e-8
Moments = Mapping[str, Tensor]


def faded(recipe: OptimizerRecipe, factor: float) -> OptimizerRecipe:
    """The recipe with its learning rate times `factor`, in (0, 1]: a rate that shrinks over updates."""
    return recipe.model_copy(update={"lr": recipe.lr * factor})


class FreeTensor:
    """A tensor that is optimised itself, images for example, as an optimiser sees a flat module.

    Args:
        start: where it starts; copied.

    Attributes:
        value: what a loss is computed from.
        trainable: the same memory without gradient.
        gradients: where backward leaves the gradient.
    """

    def __init__(self, start: Tensor) -> None:
        self.trainable = start.detach().clone()
        self.gradients = torch.zeros_like(self.trainable)
        self.value = nn.Parameter(self.trainable)
        self.value.grad = self.gradients

    def parameters(self) -> list[nn.Parameter]:
        """The tensor alone."""
        return [self.value]

    def zero_gradients(self) -> None:
        """Sets the gradient to zero."""
        self.gradients.zero_()


class Optimizer:
    """SGD or Adam on a flat module's parameters, or on a free tensor.

    Args:
        recipe: which, and its rates.
        module: whose `trainable` is updated from its `gradients`.
        state: moments from `state()` to go on from; copied. None or empty: afresh.
        part: which of the parameters are updated; others stay, whatever their gradients, momentum and decay.
        betas: Adam's.
    """

    def __init__(
        self,
        recipe: OptimizerRecipe,
        module: FlatModule | FreeTensor,
        state: Moments | None = None,
        *,
        part: slice = slice(None),
        betas: tuple[float, float] = ADAM_BETAS,
    ) -> None:
        self._recipe, self._module, self._betas = recipe, module, betas
        self._parameters, self._gradients = module.trainable[part], module.gradients[part]
        kept = state or self._fresh()
        self._state = {name: value.clone() for name, value in kept.items()}

    def minimise(self, loss: Tensor, *, alone: bool = False) -> None:
        """One step on `loss`: gradients afresh, backward, update.

        `alone`: no other module's gradients are computed; those that the loss reaches are left as they are.
        """
        self._module.zero_gradients()
        torch.autograd.backward(loss, inputs=self._module.parameters() if alone else None)
        self.step()

    def step(self, factor: float = 1.0) -> None:
        """One update from the gradients as they are, at `factor` times the recipe's learning rate."""
        lr = self._recipe.lr * factor
        with torch.no_grad():
            if self._recipe.name == "adam":
                self._adam(lr)
            else:
                self._sgd(lr)

    def state(self) -> dict[str, Tensor]:
        """The moments, to be kept between rounds; copied."""
        return {name: value.clone() for name, value in self._state.items()}

    def _fresh(self) -> dict[str, Tensor]:
        zeros = torch.zeros_like(self._gradients)
        if self._recipe.name == "adam":
            return {"first": zeros, "second": zeros, "steps": torch.zeros((), device=zeros.device)}
        return {"momentum": zeros} if self._recipe.momentum else {}

    def _adam(self, lr: float) -> None:
        adam(
            [self._parameters],
            [self._gradients],
            [self._state["first"]],
            [self._state["second"]],
            [],
            [self._state["steps"]],
            fused=True,
            amsgrad=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=lr,
            weight_decay=self._recipe.weight_decay,
            eps=ADAM_EPS,
            maximize=False,
        )

    def _sgd(self, lr: float) -> None:
        sgd(
            [self._parameters],
            [self._gradients],
            [self._state.get("momentum")],
            fused=True,
            weight_decay=self._recipe.weight_decay,
            momentum=self._recipe.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=self._recipe.nesterov,
            maximize=False,
        )
