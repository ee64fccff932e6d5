"""A module as ONE flat float32 vector: parameters that train first, then buffers that training changes.

What else a module has stays beside the vector; rayfed_kd/models/module_tensors.py says what.

Loading a model is one copy, an optimiser step a few large operations, an average a weighted sum
of vectors. Convolution weights lie in the vector in channels-last order, so that a module computes
channels-last without a copy; nobody but this file needs to know the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from operator import is_not
from typing import Any, cast

import torch
from torch import Tensor, nn

from rayfed_kd.errors import RunError
from rayfed_kd.models.module_tensors import PLAIN_ORDER, HeldTensor, ModuleTensors
from rayfed_kd.models.spacing import Spacing
from rayfed_kd.models.vectors import Layout, PlacedTensor
from rayfed_kd.models.whole_modules import classify, features_of
from rayfed_kd.recipe.seeds import global_stream

# Where a module has its attributes, its parts and its hooks.
HOOKS = ("forward_pre", "forward", "backward_pre", "backward")
TABLES = ("__dict__", "_modules", *(f"_{kind}_hooks" for kind in HOOKS))


class FlatModule:
    """A module whose parameters and buffers that change are views of `storage`, gradients of `gradients`.

    A buffer that `forward` assigns anew is brought back into its place before the vector is read or loaded.

    Attributes:
        module: the wrapped module.
        storage: the vector in memory, [num_elements]; on a GPU with gaps of zeros, as `spacing` says.
        spacing: where its tensors lie; None: one after another, as in the vector.
        places: the same of each tensor, by name.
        trainable: [num_parameters], the parameters as one tensor, for an optimiser; with gaps like `storage`.
        gradients: where backward leaves their gradients, as `trainable` has them.
        num_parameters, num_buffers, num_elements: lengths of the vector's two stretches, and of the vector.
        trained, buffers: the parameters and the buffers in it, in the vector's order.
        leaves: the parameters themselves.
        submodules: the module and all within it.
        autocast: what it computes in beside float32, where torch's autocast holds that safe; None: nothing.
            Inputs that it is given and outputs that it gives are float32 all the same.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        # Before `to`, which gives a buffer in two places a copy for each.
        parts = ModuleTensors.of(module)
        self.module = module.to(device)
        self.trained, self.buffers, plain = parts.trained, parts.moving, hasattr(module, PLAIN_ORDER)
        self._seen: Callable[[Tensor, torch.Size], Tensor] = Tensor.view if plain else view_as
        self._lying: Callable[[torch.Size], tuple[int, ...]] = tuple if plain else _lying
        self._statistics = (*parts.moving, *parts.counters)
        self.leaves = [cast(nn.Parameter, slot.now) for slot in parts.trained]
        self.num_parameters = sum(slot.shape.numel() for slot in parts.trained)
        # Where in the vector each of them lies, by name.
        self._dense, start = dict[str, slice](), 0
        for slot in (*parts.trained, *parts.moving):
            self._dense[slot.name] = slice(start, start := start + slot.shape.numel())
        self.num_elements, self.num_buffers = start, start - self.num_parameters
        self.places, self.spacing, trained = self._dense, None, self.num_parameters
        if torch.device(device).type != "cpu":
            self.spacing = Spacing(tuple(place.stop - place.start for place in self._dense.values()))
            self.places = dict(zip(self._dense, self.spacing.stored, strict=True))
            trained = self.spacing.within(slice(None), self.num_parameters)[0].stop
        self.storage = torch.zeros(self.spacing.length if self.spacing else start, device=device)
        self.gradients = torch.zeros(trained, device=device)
        self.trainable = self.storage[:trained]
        self.submodules = list(self.module.modules())
        tables = [getattr(part, name) for part in self.submodules for name in TABLES]
        self._built = list(zip(tables, map(dict, tables), strict=True))
        self.autocast: torch.dtype | None = None
        self._training: bool | None = None  # the mode that `_switch` has set
        with torch.no_grad():
            self._adopt(parts)

    def _adopt(self, parts: ModuleTensors) -> None:
        """Move the module's tensors into the vector, and note where the tensors beside the vector are."""
        for leaf, slot in zip(self.leaves, parts.trained, strict=True):
            leaf.data = self._seen(self.storage[self.places[slot.name]], slot.shape).copy_(leaf)
        self._gradients = [
            self._seen(self.gradients[self.places[slot.name]], slot.shape) for slot in parts.trained
        ]
        for slot in parts.moving:
            slot.assign(self._home(slot).copy_(slot.now))
        self._first_places = [slot.places[0] for slot in parts.trained]
        # What `_settle` looks at, as flat lists: it does so at every load.
        self._watched = [
            (table, name, slot.now, slot.now.data_ptr(), slot)
            for slot in parts.trained
            for table, name in slot.places
        ]
        self._moving = [
            (table, name, slot.now.data_ptr(), slot) for slot in parts.moving for table, name in slot.places
        ]
        self._fixed = [
            (table, name, table[name], table[name]._version, slot)
            for slot in parts.fixed
            for table, name in slot.places
        ]
        counters = [table[name] for slot in parts.counters for table, name in slot.places]
        self._counters = [(counter, counter.clone()) for counter in counters]

    def _settle(self) -> None:
        """Brings buffers that were assigned anew back into their places.

        Raises: RunError if something is no longer what it was taken for when the module was built.
        """
        for table, name, leaf, address, slot in self._watched:
            if table.get(name) is not leaf or leaf.data_ptr() != address:
                raise RunError(
                    f"{slot.name}: training replaces this parameter, or its memory, as `.data = ...` does; "
                    "expected changes in place, as copy_ within torch.no_grad()"
                )
        for table, name, tensor, version, slot in self._fixed:
            if tensor is None or version != tensor._version or table.get(name) is not tensor:
                raise RunError(
                    f"{slot.name}: it changes, and two batches of training before the first round left it "
                    "as it was; expected one that always stays or that every batch changes"
                )
        for table, name, address, slot in self._moving:
            current = table.get(name)
            if current is None or current.data_ptr() != address or current.shape != slot.shape:
                self._bring_back(slot)

    def _bring_back(self, slot: HeldTensor) -> None:
        tensors = [table.get(name) for table, name in slot.places]
        tensor = tensors[0]
        if (
            tensor is None
            or tensor.shape != slot.shape
            or tensor.dtype != torch.float32
            or any(other is not tensor for other in tensors)
        ):
            raise RunError(
                f"{slot.name}: training makes another buffer of it, in shape, type or places; expected "
                "changes in place"
            )
        # Not the view of before, whose memory `.data = ...` may have replaced.
        slot.assign(self._home(slot).copy_(tensor.detach()))

    def _home(self, slot: HeldTensor) -> Tensor:
        """A buffer's place in the vector."""
        return self.storage[self.places[slot.name]].view(slot.shape)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The module's output."""
        return self._computed(self.module, *inputs)

    def _computed(self, function: Callable[..., Tensor], *inputs: Any) -> Tensor:
        """What a part of the module gives; the only way by which inputs reach it."""
        if self.autocast is None:
            return function(*inputs)
        # No cache: it would hold copies of weights, which an optimiser changes in place.
        with torch.autocast(self.storage.device.type, dtype=self.autocast, cache_enabled=False):
            output = function(*inputs)
        # Losses are computed in float32, and a backward pass begins in it.
        return output.float()

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

    def between(self, first: int, last: int | None, hidden: Tensor) -> Tensor:
        """What the classifier's stages from `first` on make of the output of those before, as its own."""
        return self._computed(self.module.between, first, last, hidden)  # type: ignore[arg-type]

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

    def load(self, vector: Tensor, *, anew: bool = False) -> None:
        """Copies `vector`, [num_elements] float32, into the module.

        Args:
            anew: attributes, parts and hooks that a step has changed are as they were built, too.
        Raises: ValueError if the length differs.
        """
        for table, built in self._built if anew else ():
            if len(table) != len(built) or any(map(is_not, table.values(), built.values())):
                table.clear()
                table.update(built)
                self._training = None  # the modes are those of the start, too
        if vector.shape != (self.num_elements,):
            raise ValueError(f"vector has shape {list(vector.shape)}, expected [{self.num_elements}]")
        with torch.no_grad():
            self._settle()
            numbers = vector if self.spacing is None else self.spacing.spread(vector.to(self.storage.device))
            self.storage.copy_(numbers)
            for counter, first in self._counters:
                counter.copy_(first)

    def parameters(self) -> list[nn.Parameter]:
        """The module's parameters, in the vector's order; within a group's step, what stands in for them."""
        return [cast(nn.Parameter, table[name]) for table, name in self._first_places]

    def parts(self, vector: Tensor) -> list[Tensor]:
        """`vector`, [num_parameters] or longer, seen as the module's parameters: one view each, in order."""
        return [self._seen(vector[self._dense[slot.name]], slot.shape) for slot in self.trained]

    def tensors(self, vector: Tensor) -> dict[str, Tensor]:
        """`vector`, [num_elements], as the module's tensors by name: views, or on a GPU aligned copies."""
        parameters = zip((slot.name for slot in self.trained), self.parts(vector), strict=True)
        buffers = {slot.name: vector[self._dense[slot.name]].view(slot.shape) for slot in self.buffers}
        tensors = {**dict(parameters), **buffers}
        return {name: tensor.clone() for name, tensor in tensors.items()} if self.spacing else tensors

    def spans(self) -> list[tuple[tuple[nn.Module, ...], int, int]]:
        """Where in the vector tensors lie: (the modules that have one, start, stop), in its order."""
        every = [(slot.owners, self._dense[slot.name]) for slot in (*self.trained, *self.buffers)]
        return [(owners, place.start, place.stop) for owners, place in every]

    @cached_property
    def layout(self) -> Layout:
        """The vector's tensors, in its order."""
        parameters = [PlacedTensor(slot.name, self._lying(slot.shape), "parameter") for slot in self.trained]
        buffers = [PlacedTensor(slot.name, tuple(slot.shape), "buffer") for slot in self.buffers]
        return Layout((*parameters, *buffers))

    @contextmanager
    def keeping_statistics(self) -> Iterator[None]:
        """Restore the running statistics of all layers at the end of the `with` block."""
        originals = [slot.now for slot in self._statistics]
        for slot in self._statistics:
            # A pass may change it; writing the old values back in place would spoil graphs.
            slot.assign(slot.now.clone())
        try:
            yield
        finally:
            for slot, tensor in zip(self._statistics, originals, strict=True):
                slot.assign(tensor)

    def using_batch_statistics(self) -> AbstractContextManager[None]:
        """Within, layers normalise by a batch's own statistics, in eval mode too; running ones stay."""
        return self._in_mode(training=True)

    def using_running_statistics(self) -> AbstractContextManager[None]:
        """Within, layers normalise by their running statistics, in train mode too; they stay."""
        return self._in_mode(training=False)

    @contextmanager
    def _in_mode(self, training: bool) -> Iterator[None]:
        """Switch the layers that have running statistics to this mode, and keep their statistics."""
        layers = {owner: owner.training for slot in self.buffers for owner in slot.owners}
        try:
            for layer in layers:
                layer.training = training
            with self.keeping_statistics():
                yield
        finally:
            for layer, before in layers.items():
                layer.training = before

    def vector(self) -> Tensor:
        """A copy of the module as a vector, [num_elements] float32, on its device."""
        with torch.no_grad():
            self._settle()
            return self.spacing.gathered(self.storage) if self.spacing else self.storage.clone()

    def train(self) -> FlatModule:
        """Train mode: parameters take gradients, which start at zero; those that are frozen take none."""
        return self._switch(train=True)

    def freeze(self) -> FlatModule:
        """Eval mode, and no parameter takes a gradient; inputs still may."""
        return self._switch(train=False)

    def zero_gradients(self) -> None:
        """Sets all gradients to zero, and leads back to `gradients` what a loop of one's own led away.

        Backward adds in place to a gradient that is there. Without one, as torch's `zero_grad` leaves it, or
        with another, it would not reach `gradients`, and an optimiser would step on zeros.
        """
        for leaf, gradient in zip(self.leaves, self._gradients, strict=True):
            leaf.grad = gradient
        self.gradients.zero_()

    def _switch(self, train: bool) -> FlatModule:
        # Also where all parts are in that mode already: a module's own `train` may keep some in another.
        if train is not self._training or any(part.training is not train for part in self.submodules):
            self.module.train(train)
            self._training = train
        for leaf in self.leaves:
            if leaf.requires_grad is not train:  # perhaps as a step before has left it
                leaf.requires_grad_(train)
        # A module that is lent again still holds the gradients of an earlier step.
        self.zero_gradients()
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
    return flat.view((*flat.shape[:-1], *shape))  # one argument: a scalar has no sides


def _lying(shape: torch.Size) -> tuple[int, ...]:
    """A parameter's shape in the order in which its numbers lie in the vector."""
    return (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else tuple(shape)


def build_flat(
    build: Callable[[], nn.Module], device: torch.device | str, seed: int, name: str, *owner: str | int
) -> FlatModule:
    """A freshly initialised module, the same wherever it is made.

    Args:
        build: makes the module, drawing from torch's global generator as torch's layers do.
        device: where it lives.
        seed: the run's seed.
        name: the architecture's name, so that no two share a stream.
        owner: whose own, as a client's number; nothing: the one that all have in common.
    """
    with global_stream(seed, "initial", name, *owner):
        return FlatModule(build(), device)


def initial_vector(build: Callable[[], nn.Module], seed: int, name: str, *owner: str | int) -> Tensor:
    """The vector of a freshly initialised module, on the CPU.

    Args:
        build, seed, name, owner: as `build_flat` takes them.
    """
    return build_flat(build, "cpu", seed, name, *owner).vector()
