"""A module as ONE flat float32 vector: parameters first, then buffers.

Loading a model is one copy, an optimiser step a few large operations, an average a weighted sum
of vectors. Convolution weights lie in the vector in channels-last order, so that a module computes
channels-last without a copy; nobody but this file needs to know the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rayfed_kd.models.compiling import compiled
from rayfed_kd.models.vector_layout import Layout, PlacedTensor, Role
from rayfed_kd.models.whole_modules import classify, features_of
from rayfed_kd.seeds import derive


class FlatModule:
    """A module whose parameters and float buffers are views of `storage`, gradients of `gradients`.

    Integer buffers (BatchNorm's counters) have a place in the vector too, as float32, and are
    rounded back on load: they cannot be views.

    Attributes:
        module: the wrapped module.
        trainable: [num_parameters], the parameters as one tensor, for an optimiser.
        gradients: [num_parameters], where backward leaves their gradients.
        num_parameters, num_buffers: lengths of the vector's two stretches.
        integers: the integer buffers.
        leaves: the parameters, in the vector's order.
        submodules: the module and all within it.
        autocast: what it computes in beside float32, where torch's autocast holds that safe; None: nothing.
            Inputs that it is given and outputs that it gives are float32 all the same.
        compiled_batch: training passes on batches of this size are compiled; None: none is.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        self.module = module.to(device)
        parameters = list(module.parameters())
        buffers = list(module.buffers())
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if tensor.is_floating_point() and tensor.dtype != torch.float32:
                raise ValueError(f"{name} is {tensor.dtype}; a vector holds float32 only")
        self.num_parameters = sum(p.numel() for p in parameters)
        self.num_buffers = sum(b.numel() for b in buffers)
        self.storage = torch.empty(self.num_parameters + self.num_buffers, device=device)
        self.gradients = torch.zeros(self.num_parameters, device=device)
        self._integers: list[tuple[Tensor, Tensor]] = []
        self._adopt_parameters(parameters)
        self._adopt_buffers()
        self.trainable = self.storage[: self.num_parameters]
        self.integers = [buffer for buffer, _ in self._integers]
        self._requires_grad = True
        self.leaves = parameters
        self.submodules = list(self.module.modules())
        self.autocast: torch.dtype | None = None
        self.compiled_batch: int | None = None
        self._programs: dict[Callable[..., Tensor], Callable[..., Tensor]] = {}

    def _adopt_parameters(self, parameters: Sequence[nn.Parameter]) -> None:
        start = 0
        for parameter in parameters:
            stop = start + parameter.numel()
            place = view_as(self.storage[start:stop], parameter.shape)
            place.copy_(parameter.data)
            parameter.data = place
            # Backward adds in place to a gradient that is there; without one it would make another tensor.
            parameter.grad = view_as(self.gradients[start:stop], parameter.shape)
            start = stop

    def _adopt_buffers(self) -> None:
        start = self.num_parameters
        for owner in self.module.modules():
            for name, buffer in owner.named_buffers(recurse=False):
                stop = start + buffer.numel()
                place = self.storage[start:stop].view(buffer.shape)
                place.copy_(buffer)
                if buffer.is_floating_point():
                    owner._buffers[name] = place
                else:
                    self._integers.append((buffer, place))
                start = stop

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The module's output."""
        return self._computed(self.module, *inputs)

    def _computed(self, function: Callable[..., Tensor], *inputs: Any) -> Tensor:
        """What a part of the module gives; the only way by which inputs reach it."""
        if self.compiled_batch is not None and self._compiles(inputs[-1]):
            function = self._program(function)
        if self.autocast is None:
            return function(*inputs)
        # No cache: it would hold copies of weights, which an optimiser changes in place.
        with torch.autocast(self.storage.device.type, dtype=self.autocast, cache_enabled=False):
            output = function(*inputs)
        # Losses are computed in float32, and a backward pass begins in it.
        return output.float()

    def _compiles(self, batch: Tensor) -> bool:
        """Whether this pass is a compiled one.

        Not what trains nothing, nor under torch.func, which takes no compiled function. And batches of one
        size alone: each further one, as the last of an epoch, would take every host seconds of compiling.
        """
        return (
            self.module.training
            and torch.is_grad_enabled()
            and len(batch) == self.compiled_batch
            and torch._C._functorch.peek_interpreter_stack() is None
        )

    def _program(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        if function not in self._programs:
            self._programs[function] = compiled(function, self.storage.device)
        return self._programs[function]

    def predict(self, inputs: Tensor) -> Tensor:
        """The output in eval mode, without gradient; a module in training goes on training after it."""
        training = self.module.training
        self.module.eval()
        with torch.no_grad():
            output = self(inputs)
        self.module.train(training)
        return output

    def features(self, inputs: Tensor) -> Tensor:
        """The classifier's features, [batch, feature_size]: the input of its last layer."""
        return self._computed(features_of, self.module, inputs)

    def classify(self, features: Tensor) -> Tensor:
        """The classifier's logits, [batch, classes], from features."""
        return self._computed(classify, self.module, features)

    def up_to(self, stage: int, images: Tensor) -> Tensor:
        """The output of the classifier's first `stage` stages."""
        return self._computed(self.module.up_to, stage, images)  # type: ignore[arg-type]

    def from_(self, stage: int, hidden: Tensor) -> Tensor:
        """The classifier's logits, [batch, classes], from the output of its first `stage` stages."""
        return self._computed(self.module.from_, stage, hidden)  # type: ignore[arg-type]

    @property
    def latent(self) -> int:
        """Length of a generator's noise."""
        latent: int = self.module.latent  # type: ignore[assignment]
        return latent

    @property
    def standardised(self) -> bool:
        """Whether a generator's samples are as the model sees them, rather than pixels in [0, 1]."""
        return bool(getattr(self.module, "standardised", False))

    @cached_property
    def described(self) -> str:
        """The module's classes and sizes, the same for equal architectures."""
        return f"{type(self.module).__module__}.{type(self.module).__qualname__} {self.module!r}"

    @property
    def num_elements(self) -> int:
        """Length of the vector, buffers included."""
        return self.num_parameters + self.num_buffers

    def load(self, vector: Tensor) -> None:
        """Copies `vector`, [num_elements] float32, into the module.

        Raises: ValueError if the length differs.
        """
        if vector.shape != self.storage.shape:
            raise ValueError(f"vector has shape {list(vector.shape)}, expected [{self.num_elements}]")
        with torch.no_grad():
            self.storage.copy_(vector)
            # Counters come as floats; a mean of several clients' counters is no whole number.
            for buffer, place in self._integers:
                buffer.copy_(place.round())

    def parameters(self) -> list[nn.Parameter]:
        """The module's parameters, in the vector's order."""
        return list(self.module.parameters())

    def parts(self, vector: Tensor) -> list[Tensor]:
        """`vector`, [num_parameters] or longer, seen as the module's parameters: one view each, in order."""
        views, start = [], 0
        for parameter in self.module.parameters():
            views.append(view_as(vector[start : start + parameter.numel()], parameter.shape))
            start += parameter.numel()
        return views

    def tensors(self, vector: Tensor) -> list[Tensor]:
        """`vector`, [num_elements], seen as the module's parameters, then its float buffers."""
        views, start = self.parts(vector), self.num_parameters
        for buffer in self.module.buffers():
            if buffer.is_floating_point():
                views.append(vector[start : start + buffer.numel()].view(buffer.shape))
            start += buffer.numel()
        return views

    def spans(self) -> list[tuple[nn.Module, int, int]]:
        """Where in the vector tensors lie: (the module that owns one, start, stop), in the vector's order."""
        owners = list(self.module.modules())
        parameters = [(owner, p.data) for owner in owners for p in owner.parameters(recurse=False)]
        buffers = [(owner, b) for owner in owners for b in owner.buffers(recurse=False)]
        spans, start = [], 0
        for owner, tensor in [*parameters, *buffers]:
            spans.append((owner, start, start + tensor.numel()))
            start += tensor.numel()
        return spans

    @cached_property
    def layout(self) -> Layout:
        """The vector's tensors, in its order."""
        tensors = [
            PlacedTensor(name, _lying(parameter.shape), "parameter")
            for name, parameter in self.module.named_parameters()
        ]
        for prefix, owner in self.module.named_modules():
            for name, buffer in owner.named_buffers(recurse=False):
                role: Role = "buffer" if buffer.is_floating_point() else "counter"
                tensors.append(PlacedTensor(f"{prefix}.{name}".lstrip("."), tuple(buffer.shape), role))
        return Layout(tuple(tensors))

    @contextmanager
    def keeping_statistics(self) -> Iterator[None]:
        """Within, forward passes in train mode leave the running statistics of BatchNorm as they were."""
        # In train mode such a layer hands torch no running statistics that could be updated.
        with self._batchnorm(track_running_stats=False):
            yield

    @contextmanager
    def using_batch_statistics(self) -> Iterator[None]:
        """Within, BatchNorm normalises by a batch's own statistics, in eval mode too; running ones stay."""
        with self._batchnorm(training=True, track_running_stats=False):
            yield

    @contextmanager
    def using_running_statistics(self) -> Iterator[None]:
        """Within, BatchNorm normalises by its running statistics, in train mode too; they stay."""
        with self._batchnorm(training=False):
            yield

    @contextmanager
    def _batchnorm(self, **attributes: bool) -> Iterator[None]:
        """Within, the BatchNorm layers that have running statistics have these attributes."""
        layers = [part for part in self.submodules if isinstance(part, _BatchNorm)]
        layers = [part for part in layers if part.track_running_stats]
        before = [{name: getattr(part, name) for name in attributes} for part in layers]
        try:
            for part in layers:
                vars(part).update(attributes)
            yield
        finally:
            for part, values in zip(layers, before, strict=True):
                vars(part).update(values)

    def vector(self) -> Tensor:
        """A copy of the module as a vector, [num_elements] float32, on its device."""
        with torch.no_grad():
            # Integer buffers are no views: training has moved them and not their places.
            for buffer, place in self._integers:
                place.copy_(buffer)
            return self.storage.clone()

    def train(self) -> FlatModule:
        """Train mode: parameters take gradients, which start at zero."""
        return self._switch(train=True)

    def freeze(self) -> FlatModule:
        """Eval mode, and no parameter takes a gradient; inputs still may."""
        return self._switch(train=False)

    def zero_gradients(self) -> None:
        """Sets all gradients to zero, in one operation."""
        self.gradients.zero_()

    def _switch(self, train: bool) -> FlatModule:
        if any(part.training is not train for part in self.submodules):
            self.module.train(train)
        if train != self._requires_grad:
            self.module.requires_grad_(train)
            self._requires_grad = train
        # A module that is lent again still holds the gradients of an earlier step.
        self.gradients.zero_()
        return self


def view_as(flat: Tensor, shape: torch.Size) -> Tensor:
    """See a stretch of a vector as one tensor, without a copy.

    Args:
        flat: [..., numel].
        shape: of the tensor; a 4-D weight lies in the vector in channels-last order.
    Returns: a view, [..., *shape].
    """
    if len(shape) == 4:
        out, into, height, width = shape
        return flat.view(*flat.shape[:-1], out, height, width, into).movedim(-1, -3)
    return flat.view(*flat.shape[:-1], *shape)


def _lying(shape: torch.Size) -> tuple[int, ...]:
    """A parameter's shape in the order in which its numbers lie in the vector."""
    if len(shape) == 4:
        out, into, height, width = shape
        return out, height, width, into
    return tuple(shape)


def initial_vector(build: Callable[[], nn.Module], seed: int, name: str, *owner: str | int) -> Tensor:
    """The vector of a freshly initialised module, on the CPU, the same wherever it is made.

    Args:
        build: makes the module, drawing from torch's global generator as torch's layers do.
        seed: the run's seed.
        name: the architecture's name, so that no two share a stream.
        owner: whose own vector, as a client's number; nothing: the one that all have in common.
    """
    # Layers draw from torch's global generator; it is put back, so that no other draw depends on this one.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "initial", name, *owner))
        return FlatModule(build()).vector()
