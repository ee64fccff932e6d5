"""What must agree between clients for their steps to run as one program."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from types import FunctionType, MethodType

from rayfed_kd.errors import RunError
from rayfed_kd.protocol import Method
from rayfed_kd.toolbox.local_training import BatchLoss, LocalSteps
from rayfed_kd.toolbox.optimizers import Optimizer


class GroupError(RunError):
    """A method that says it trains in groups gave steps that cannot run as one program."""


def program_of(steps: LocalSteps) -> Hashable:
    """What must be equal for clients to train as one: the losses, and all names, architectures and shapes.

    Raises: GroupError if the losses are in a form that does not batch.
    """
    modules = [id(model) for model in steps.models.values()]
    # `modules.index` tells which names stand for one and the same module.
    models = tuple(
        (name, model.described, tuple(part.training for part in model.submodules), modules.index(id(model)))
        for name, model in steps.models.items()
    )
    places = {id(optimizer): place for place, optimizer in enumerate(optimizers_of(steps))}
    phases = tuple(
        (_loss_key(phase.loss), tuple(places[id(optimizer)] for optimizer in phase.optimizers))
        for phase in steps.phases
    )
    optimizers = tuple(
        (
            _place_of(optimizer, modules),
            optimizer.rule,
            optimizer.part.start,
            optimizer.part.stop,
            optimizer.begun,
        )
        for optimizer in optimizers_of(steps)
    )
    extras = tuple((name, tensor.shape, tensor.dtype) for name, tensor in steps.extras.items())
    # The group trains stacked copies, so a tensor in a model's own memory would not follow its training.
    trained = {m.storage.untyped_storage().data_ptr() for m in steps.models.values() if m.module.training}
    for name, tensor in steps.extras.items():
        if tensor.requires_grad:
            raise GroupError(f"its loss is given {name}, a tensor that takes a gradient")
        if tensor.untyped_storage().data_ptr() in trained:
            raise GroupError(f"its loss is given {name}, which is part of a model that it trains")
    return models, phases, optimizers, extras


def optimizers_of(steps: LocalSteps) -> list[Optimizer]:
    """The steps' optimisers, each once, in the order of the phases."""
    every = [optimizer for phase in steps.phases for optimizer in phase.optimizers]
    return list({id(optimizer): optimizer for optimizer in every}.values())


def _place_of(optimizer: Optimizer, modules: Sequence[int]) -> int:
    if id(optimizer.module) not in modules:
        raise GroupError("an optimiser is on a model that its loss is not told of")
    return modules.index(id(optimizer.module))


def _loss_key(loss: BatchLoss) -> Hashable:
    if isinstance(loss, MethodType) and isinstance(loss.__self__, Method):
        # A process has one method object for all its clients.
        return loss.__func__, id(loss.__self__)
    dataclass_options = getattr(getattr(loss, "__self__", None), "__dataclass_params__", None)
    if isinstance(loss, MethodType) and getattr(dataclass_options, "frozen", False):
        return loss.__func__, loss.__self__
    if isinstance(loss, FunctionType) and not (loss.__closure__ or loss.__defaults__ or loss.__kwdefaults__):
        return loss
    raise GroupError("its loss is neither a function without captured variables nor a frozen object's")
