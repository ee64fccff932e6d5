"""Optimisers over a flat module: one leaf, so a step is one fused operation, and the state is explicit.

SGD and Adam are torch's functional forms, not its classes: the arithmetic is the same (a test says so), a
step costs a third, and the first one does not import torch's compiler (1.4 seconds in every process). Every
other optimiser, and these two with further options, are torch's classes over the same flat tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.recipe.sections.local_training import ClipRecipe, LocalOptimizer, OptimizerRecipe
from rayfed_kd.recipe.sections.torch_optimizers import arguments, torch_class

ADAM_BETAS, ADAM_EPS = (0.9, 0.999), 1e-8
Moments = Mapping[str, Tensor]


def faded(recipe: OptimizerRecipe, factor: float) -> OptimizerRecipe:
    """The recipe with its learning rate times `factor`, in (0, 1]: a rate that shrinks over updates."""
    return recipe.model_copy(update={"lr": recipe.lr * factor})


def clipped(recipe: OptimizerRecipe, norm: float | None) -> OptimizerRecipe:
    """A context's `local.optimizer` with gradients clipped at this norm, unless the recipe clips them."""
    pace = recipe.pace if isinstance(recipe, LocalOptimizer) else None
    if norm is None or (isinstance(recipe, LocalOptimizer) and recipe.clip is not None):
        return recipe
    values = {**dict(recipe), **(recipe.model_extra or {}), "pace": pace, "clip": ClipRecipe(norm=norm)}
    return LocalOptimizer.model_construct(**values)


@dataclass(frozen=True)
class StepRule:
    """What an optimiser does to flat parameters, gradients and moments.

    Attributes:
        recipe: which one, and its rates.
        betas: Adam's, where the recipe gives none.
        clip: bound on every gradient; None: none.
    """

    recipe: OptimizerRecipe
    betas: tuple[float, float] = ADAM_BETAS
    clip: ClipRecipe | None = None

    def fresh(self, parameters: Tensor) -> dict[str, Tensor]:
        """The moments before the first step on `parameters`; empty if torch's class makes them itself."""
        if not self.recipe.is_plain:
            return {}
        zeros = torch.zeros_like(parameters)
        if self.recipe.name == "adam":
            # torch's fused Adam counts its steps in a tensor on the parameters' device.
            steps = torch.zeros((), device=zeros.device)
            return {"first": zeros, "second": torch.zeros_like(zeros), "steps": steps}
        return {"momentum": zeros} if self.recipe.momentum else {}

    def step(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        moments: Sequence[dict[str, Tensor]],
        factor: float = 1.0,
    ) -> None:
        """Updates flat tensors and their moments in place, each on its own, at `factor` times the rate."""
        recipe, lr = self.recipe, self.recipe.lr * factor
        self._bound(gradients)
        if not recipe.is_plain:
            self._torchs_step(parameters, gradients, moments, lr)
        elif recipe.name == "adam":
            adam(
                parameters,
                gradients,
                [state["first"] for state in moments],
                [state["second"] for state in moments],
                [],
                [state["steps"] for state in moments],
                fused=True,
                amsgrad=False,
                beta1=self.betas[0],
                beta2=self.betas[1],
                lr=lr,
                weight_decay=recipe.weight_decay,
                eps=ADAM_EPS,
                maximize=False,
            )
        else:
            sgd(
                parameters,
                gradients,
                [state.get("momentum") for state in moments],
                fused=True,
                weight_decay=recipe.weight_decay,
                momentum=recipe.momentum,
                lr=lr,
                dampening=0.0,
                nesterov=recipe.nesterov,
                maximize=False,
            )

    def _bound(self, gradients: Sequence[Tensor]) -> None:
        if self.clip is None:
            return
        for gradient in gradients:
            holder = torch.empty_like(gradient)  # torch clips the `grad` of tensors
            holder.grad = gradient
            if self.clip.norm is not None:
                clip_grad_norm_(holder, self.clip.norm)
            else:
                assert self.clip.value is not None
                clip_grad_value_(holder, self.clip.value)

    def _torchs_step(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        moments: Sequence[dict[str, Tensor]],
        lr: float,
    ) -> None:
        """A step of torch's own class, made for this step: all that it keeps are the moments."""
        kind = torch_class(self.recipe.name)
        options = arguments({**self.recipe.torch_options, "lr": lr})
        # One tensor after the other: a client's result must not depend on who steps beside it.
        optimizer = kind(parameters, foreach=False, **options)
        for parameter, gradient, state in zip(parameters, gradients, moments, strict=True):
            parameter.grad = gradient
            if state:
                # torch refuses counters on a GPU; where moments lie on one, their counter came with them.
                steps = {"step": state["step"].cpu()} if "step" in state else {}
                optimizer.state[parameter] = {**state, **steps}
        optimizer.step()
        for parameter, state in zip(parameters, moments, strict=True):
            state.update(optimizer.state[parameter])
            parameter.grad = None


class FreeTensor:
    """A tensor that is optimised itself, images for example, as an optimiser sees a flat module.

    Args:
        start: where it starts; copied.

    Attributes:
        value: what a loss is computed from.
        trainable: the same memory without gradient.
        gradients: where backward leaves the gradient.
        leaves: the tensor alone.
    """

    def __init__(self, start: Tensor) -> None:
        self.trainable = start.detach().clone()
        self.gradients = torch.zeros_like(self.trainable)
        self.value = nn.Parameter(self.trainable)
        self.leaves = [self.value]

    def zero_gradients(self) -> None:
        """Sets the gradient to zero."""
        # Backward adds into this memory, which the optimiser reads, whatever somebody's own loop has left.
        self.value.grad = self.gradients.zero_()


class Optimizer:
    """An optimiser on a flat module's parameters, or on a free tensor.

    Args:
        recipe: which, and its rates; a context's `local.optimizer` also has the pace of local training.
        module: whose `trainable` is updated from its `gradients`.
        state: moments from `state()` to go on from, on any device; copied. None or empty: afresh.
        part: which of the parameters are updated; others stay, whatever their gradients, momentum and decay.
        betas: Adam's, where the recipe gives none.

    Attributes:
        rule: recipe, betas and clipping.
        pace: what changes its learning rate from step to step; None: nothing.
        steps: how many it has made since it was built, but for those on public samples: what its pace counts.
        module: as given.
        part: where the parameters lie in `trainable`.
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
        clip, self.pace = None, None
        if isinstance(recipe, LocalOptimizer):
            clip, self.pace = recipe.clip, recipe.pace
            # Clients of one rule train as one program, whatever the lengths of their epochs.
            recipe = recipe.model_copy(update={"pace": None})
        self._spacing = None
        if isinstance(module, FlatModule) and module.spacing is not None:
            part, self._spacing = module.spacing.within(part, module.num_parameters)
            state = {name: self._spacing.spread(v) if v.dim() else v for name, v in (state or {}).items()}
        self.rule, self.part, self.module, self.steps = StepRule(recipe, betas, clip), part, module, 0
        self._parameters, self._gradients = module.trainable[part], module.gradients[part]
        place = self._parameters.device
        self._state = {name: value.to(place, copy=True) for name, value in (state or {}).items()}

    def minimise(self, loss: Tensor, *, factor: float = 1.0, clip: float | None = None) -> None:
        """One step on `loss`, as `minimise` below with this optimiser alone."""
        minimise(loss, self, factor=factor, clip=clip)

    def _update(self, factor: float) -> None:
        """One update from the gradients that `minimise` has just computed."""
        with torch.no_grad():
            # Not before the first step: by `begun` a group knows that it can make all its moments as one.
            self._state = self._state or self.rule.fresh(self._parameters)
            factor *= self.factor_at(self.steps)
            self.rule.step([self._parameters], [self._gradients], [self._state], factor)
            self.steps += 1

    def factor_at(self, step: int) -> float:
        """What its pace multiplies the learning rate by in a step, counted from 0."""
        return 1.0 if self.pace is None else self.pace.factor(step)

    def state(self, spaced: bool = False) -> dict[str, Tensor]:
        """The moments, to be kept between rounds; copied. `spaced`: as they lie beside the parameters."""
        moments = self._state or self.rule.fresh(self._parameters)
        if self._spacing is None or spaced:
            return {name: value.clone() for name, value in moments.items()}
        return {name: self._spacing.gathered(v) if v.dim() else v.clone() for name, v in moments.items()}

    @property
    def begun(self) -> bool:
        """Whether it has moments: given, or of steps made."""
        return bool(self._state)

    def go_on_from(self, state: Moments, steps: int) -> None:
        """Takes over moments that were updated elsewhere, and how many steps were made in all."""
        self._state, self.steps = dict(state), steps


def minimise(loss: Tensor, *optimizers: Optimizer, factor: float = 1.0, clip: float | None = None) -> None:
    """One step of every optimiser on one loss: gradients from zero, one backward pass, the updates.

    This is the only way to an update, so no optimiser can step on gradients that another loss has left.
    Gradients are computed for the optimisers' modules alone: a module that the loss merely passes through
    is as it was.

    Args:
        loss: scalar; gradient reaches the optimisers' modules.
        optimizers: at least one; several may have parts of one module.
        factor: of every recipe's learning rate, above 0.
        clip: largest Euclidean norm of a module's gradient; None: any.
    """
    modules = list({id(optimizer.module): optimizer.module for optimizer in optimizers}.values())
    # Gradients are views of one tensor, so they are zeroed in place and never set to None.
    for module in modules:
        module.zero_gradients()
    # Not torch.autograd.backward: of a tuple, as a loss beside what is to be logged, it would take the sum.
    loss.backward(inputs=[leaf for module in modules for leaf in module.leaves])  # type: ignore[no-untyped-call]
    if clip is not None:
        for module in modules:
            clip_grad_norm_(module.leaves, clip)
    for optimizer in optimizers:
        optimizer._update(factor)
