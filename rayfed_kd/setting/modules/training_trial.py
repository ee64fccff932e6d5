"""Two batches of training before the first round, on a copy: what moves, and whether a vector holds it all.

A module that is loaded with a vector must compute what a fresh one loaded with it computes: else results
would depend on which clients a process trained before. So what training changes must lie in the vector, and
what cannot lie there must stay.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from rayfed_kd.errors import RayfedError, RecipeError, RunError
from rayfed_kd.models.base import Classifier
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.models.module_tensors import MOVING, PLAIN_ORDER, HeldTensor, ModuleTensors, held_tensors
from rayfed_kd.models.whole_modules import HEAD, check_outputs, classify, features_of, with_head
from rayfed_kd.recipe.registry import blame
from rayfed_kd.recipe.sample_shapes import shown_sides
from rayfed_kd.recipe.seeds import global_stream
from rayfed_kd.setting.modules.attributes import Attributes, bits

RATE = 0.01  # of the trial's steps
# Other threads draw, too, as Ray's does while it starts. What a module draws, it draws in each try.
TRIES = 4
TRAINED = (0, 1)  # numbers of the batches of plain training, which are as large as a client's
Batch = Callable[[int], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Outcome:
    """What a trial found.

    Attributes:
        head: the name of the last linear layer, if the module's output is that layer's, in training as well.
        moving: the names of the float32 buffers that training changes.
        unreached: the names of the parameters that no gradient of the outputs reaches.
        plain_order: whether it computes with torch's own order of elements alone, as one with
            `maps.view(n, -1)` does.
    """

    head: str | None
    moving: tuple[str, ...]
    unreached: tuple[str, ...] = ()
    plain_order: bool = False

    def told(self, module: nn.Module) -> nn.Module:
        """A module of the architecture that knows it."""
        setattr(module, MOVING, self.moving)
        if self.plain_order:
            setattr(module, PLAIN_ORDER, True)
        if not isinstance(module, Classifier) and self.head is not None:
            setattr(module, HEAD, self.head)
        return module


@dataclass(frozen=True)
class TrainingTrial:
    """A trial of one architecture.

    Attributes:
        make: builds a module.
        batch: the inputs of some samples, by the batch's number; `TRAINED` are those of plain training.
        classes: how many logits each sample must get; None: any outputs.
        name: the architecture's, for messages.
        head_of: tries a module in eval mode, and finds its last linear layer.
        bf16: whether clients train it in bfloat16, as local.precision says.
    """

    make: Callable[[], nn.Module]
    batch: Batch
    classes: int | None
    name: str
    head_of: Callable[[nn.Module], str | None] = lambda module: None
    bf16: bool = False

    def outcome(self) -> Outcome:
        """Make the trial.

        Raises: RecipeError if what must stay changes, or the module cannot be held or trained.
        """
        for _ in range(TRIES - 1):
            with suppress(_DrawnMeanwhileError):
                return self._tried()
        return self._tried()

    def _tried(self) -> Outcome:
        used, fresh = self._built(), self._built()
        if not ModuleTensors.of(used).trained:
            raise RecipeError(
                f"{self.name} has no parameter that takes a gradient: nothing of it can be trained"
            )
        _check_alike(used, fresh)
        before, built = _State(used), Attributes.of(used).differing(Attributes.of(fresh))
        before.attributes.check_registered()
        with _own_draws():
            head = self.head_of(used)
            reached = self._trained_plainly(used, TRAINED[0])
            between = Attributes.of(used)
            reached |= self._trained_plainly(used, TRAINED[1])
            after = Attributes.of(used)
            before.moved(used)  # in train mode, and below in eval mode
            with torch.no_grad(), global_stream(2, "trial batch"):
                if head is not None and with_head(used, *self.batch(2))[1] != head:
                    head = None  # in training it computes something else behind that layer
        if grown := between.changed(after):
            raise RecipeError(
                f"training changes {grown} with every batch, which is neither a parameter nor a buffer and "
                "does not travel; expected a float32 buffer, or nothing that one batch leaves to the next"
            )
        unreached = (slot.name for slot in ModuleTensors.of(used).trained if id(slot.now) not in reached)
        outcome = Outcome(head, before.moved(used), tuple(unreached))
        suspects = built or before.attributes.differing(after)
        used.eval()
        shown = self._shown(used, 4)
        flats = [FlatModule(outcome.told(module)) for module in (used, fresh)]
        try:
            self._compare(flats[0], flats[1], suspects, shown)
        except (RecipeError, RuntimeError):
            if all(parameter.dim() != 4 for parameter in used.parameters()):
                raise
            outcome = replace(outcome, plain_order=True)
            flats = [FlatModule(outcome.told(flat.train().module)) for flat in flats]
            self._compare(flats[0], flats[1], suspects, shown)
        if head is not None and not isinstance(used, Classifier) and not self._has_features(flats[0]):
            outcome = replace(outcome, head=None)
        if self.bf16:
            flats[0].autocast = torch.bfloat16
            replace(self, name=f"{self.name} with local.precision=bf16")._backward(flats[0].train(), 3)
        return outcome

    def _built(self) -> nn.Module:
        with global_stream(0, "trial"):
            return self.make()

    def _trained_plainly(self, module: nn.Module, number: int) -> set[int]:
        """A step. Returns the ids of the parameters that a gradient reached."""
        module.train()
        self._backward(module, number)
        reached = set[int]()
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.requires_grad and parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=RATE)
                    parameter.grad = None
                    reached.add(id(parameter))
        return reached

    def _backward(self, module: nn.Module | FlatModule, number: int) -> Tensor:
        """A pass and its gradients. Returns the outputs."""
        inputs = self.batch(number)
        versions = [tensor._version for tensor in inputs]
        leaves = module.leaves if isinstance(module, FlatModule) else None
        try:
            with torch.enable_grad(), global_stream(number, "trial batch"):
                outputs = module(*inputs)
                check_outputs(outputs, len(inputs[0]), self.classes, self.name, "while it trains")
                if versions != [tensor._version for tensor in inputs]:
                    raise RecipeError(
                        f"{self.name} changes its inputs in place; expected x = x - 1 in place of x -= 1"
                    )
                target = torch.linspace(-1, 1, outputs.numel()).view(outputs.shape)
                (outputs.float() - target).square().mean().backward(inputs=leaves)  # as `minimise` does
        except RayfedError:
            raise
        except Exception as error:
            sides = shown_sides(inputs[0].shape[1:])
            raise RecipeError(
                f"{self.name} cannot be trained on samples of {sides}: {blame(error)}"
            ) from error
        return outputs.detach()

    def _shown(self, way: Callable[..., Tensor], number: int) -> Tensor:
        with torch.no_grad(), global_stream(number, "trial batch"):
            return way(*self.batch(number))

    def _check_stages(self, flat: FlatModule, classifier: Classifier) -> None:
        """Refuse one whose features or stages lead to other outputs than it gives, in either mode."""
        ways = partial(self._by_features, classifier), partial(classifier.between, 0, None)
        if not self._alike(flat, classifier, *ways):
            raise RecipeError(
                f"{self.name} is a Classifier that computes something else than its body's members and "
                "its head in order; expected a torch.nn.Module, or a body of one member that computes all"
            )

    def _alike(self, flat: FlatModule, *ways: Callable[..., Tensor]) -> bool:
        """Whether these ways lead to the same outputs, in either mode."""
        start = flat.vector()
        for switch in (flat.train, flat.freeze):
            contents = set()
            for way in ways:
                flat.load(start)  # a pass in train mode may change buffers
                switch()
                contents.add(bits(self._shown(way, 2)))
            if len(contents) > 1:
                return False
        return True

    def _has_features(self, flat: FlatModule) -> bool:
        """Whether the head, on its inputs as they are noted, gives what the whole module gives."""
        module = flat.module
        with suppress(IndexError):  # of inputs that hooks do not see, as of a compiled module
            return self._alike(flat, module, lambda inputs: classify(module, features_of(module, inputs)))
        return False

    def _by_features(self, classifier: Classifier, inputs: Tensor) -> Tensor:
        features = classifier.features(inputs)
        if features.shape[1:] != (classifier.feature_size,):
            sides = shown_sides(features.shape[1:])
            raise RecipeError(
                f"{self.name} has features of {sides}; feature_size is {classifier.feature_size}"
            )
        return classifier.classify(features)

    def _compare(self, used: FlatModule, fresh: FlatModule, suspects: str, shown: Tensor) -> None:
        """Refuse a module whose past shows: used and fresh, with one vector, must compute the same bits.

        Also one that computes something else than `shown`, the outputs of `used` as it was built.
        """
        try:
            start, seen = used.vector(), []
            if isinstance(used.module, Classifier):
                self._check_stages(used, used.module)
            for flat in (used, fresh):
                flat.load(start)
                outputs = self._backward(flat.train(), 3)
                if any(leaf.grad is None or not leaf.grad._is_view() for leaf in flat.leaves):
                    raise RecipeError(
                        f"{self.name} replaces or removes gradients, as a hook may; expected changes in place"
                    )
                flat.trainable.sub_(flat.gradients, alpha=RATE)
                trained = flat.vector()
                flat.load(trained)
                seen.append((outputs, trained, self._shown(flat.freeze(), 4)))
        except RunError as error:
            raise RecipeError(str(error)) from None
        if any(bits(first) != bits(other) for first, other in zip(*seen, strict=True)):
            raise RecipeError(
                f"what {self.name} computes depends on {suspects or 'something'} beside its parameters "
                "and buffers, which an earlier batch changed or which each module has for itself, and does "
                "not travel; expected a float32 buffer, or nothing that one batch leaves to the next"
            )
        used.load(start)
        if not torch.allclose(self._shown(used.freeze(), 4), shown, 1e-3, 1e-4, equal_nan=True):
            raise RecipeError(f"{self.name} computes something else with its weights in one vector")


class _State:
    """What a module holds before it is trained."""

    def __init__(self, module: nn.Module) -> None:
        self.attributes = Attributes.of(module)
        self._names = _names(module)
        self._held = list(held_tensors(module))
        self._tensors = [_Seen.of(slot) for slot in self._held]

    def moved(self, module: nn.Module) -> tuple[str, ...]:
        """The float32 buffers that have changed since.

        Raises: RecipeError if something else has that must not.
        """
        if new := sorted(_names(module) ^ self._names):
            raise RecipeError(
                f"{new[0]} is made or removed while it computes; expected all layers, parameters and "
                "buffers in __init__"
            )
        seen = zip(self._held, self._tensors, strict=True)
        return tuple(slot.name for slot, then in seen if not slot.is_counter and then.moved(slot))


@dataclass(frozen=True)
class _Seen:
    """A tensor as it was.

    Attributes:
        memory: a second view of its memory, which so is not freed: memory that replaces it lies elsewhere.
    """

    tensor: Tensor
    memory: Tensor
    trained: bool
    version: int
    content: bytes

    @classmethod
    def of(cls, slot: HeldTensor) -> _Seen:
        tensor = slot.now
        trained = slot.is_parameter and tensor.requires_grad
        return cls(tensor, tensor.detach(), trained, tensor._version, bits(tensor))

    def moved(self, slot: HeldTensor) -> bool:
        """Whether it is a buffer that has changed.

        Raises: RecipeError if it is something that must not.
        """
        refs = [table[name] for table, name in slot.places]
        elsewhere = (
            any(tensor is not self.tensor for tensor in refs) or refs[0].data_ptr() != self.memory.data_ptr()
        )
        changed = elsewhere or refs[0]._version != self.version or bits(refs[0]) != self.content
        if slot.is_parameter:
            self._check_parameter(slot, refs[0], elsewhere, changed)
            return False
        if changed and (refs[0].dtype != torch.float32 or refs[0].shape != slot.shape):
            raise RecipeError(
                f"training changes the buffer {slot.name}, {refs[0].dtype} of shape {tuple(refs[0].shape)}; "
                "expected a float32 buffer of one shape, or one that stays as it is built"
            )
        if changed and any(tensor is not refs[0] for tensor in refs):
            raise RecipeError(
                f"training gives {slot.name}, of several modules, to one of them; expected changes in place"
            )
        return changed

    def _check_parameter(self, slot: HeldTensor, tensor: Tensor, elsewhere: bool, changed: bool) -> None:
        if elsewhere:
            raise RecipeError(
                f"training replaces the parameter {slot.name}, or its memory, as `.data = ...` does; "
                "expected changes in place, as copy_ within torch.no_grad()"
            )
        if self.trained is not tensor.requires_grad:
            raise RecipeError(
                f"training switches requires_grad of {slot.name}; expected what is frozen to be so from "
                "__init__ on"
            )
        if changed and not self.trained:
            raise RecipeError(f"training changes the frozen parameter {slot.name}; expected a float32 buffer")


def _names(module: nn.Module) -> set[str]:
    """Of all submodules, parameters and buffers that are there."""
    tensors = module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
    return {name for named in (module.named_modules(), *tensors) for name, _ in named}


def _check_alike(first: nn.Module, second: nn.Module) -> None:
    for a, b in zip(held_tensors(first), held_tensors(second), strict=False):
        if a.name != b.name or bits(a.now) != bits(b.now):
            raise RecipeError(
                f"{a.name} is built with other values each time; expected draws from torch's generator alone"
            )


class _DrawnMeanwhileError(RecipeError):
    """Somebody drew from a global generator: the module, or another thread."""


@contextmanager
def _own_draws() -> Iterator[None]:
    """Refuse a block in which Python's or NumPy's global generator is drawn from, and put these back."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        yield
        drawn = random.getstate() != of_python or repr(np.random.get_state()) != repr(of_numpy)
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
    if drawn:
        raise _DrawnMeanwhileError(
            "it draws from Python's or NumPy's global generator while it computes; expected torch.rand(())"
        )
