"""Programs of many clients, run as one: the loss once under `torch.vmap`, then one fused update.

A batch stays what it is: batches of different sizes are never padded, but computed with others of their size;
a client's order of batches, its random streams and its optimiser's moments are its own.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from rayfed_kd.batching.programs import ApartError, Program
from rayfed_kd.batching.stacked import Kept, Stack
from rayfed_kd.data.batches import Drawn
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import ClientContext
from rayfed_kd.toolbox.local_training import LocalEpochs
from rayfed_kd.toolbox.optimizers import Moments


class _Logged:
    """A client's context as a batched loss sees it: what it logs is caught, what is its own is not there."""

    def __init__(self, ctx: ClientContext) -> None:
        self.classes, self.shape, self.device, self.local = ctx.classes, ctx.shape, ctx.device, ctx.local
        self.values: dict[str, Tensor] = {}
        self.normalise, self.pixels = ctx.normalise, ctx.pixels

    def log(self, **values: Tensor) -> None:
        for name, value in values.items():
            if name in self.values:
                raise ApartError(f"its loss logs {name} twice a batch")
            self.values[name] = value.detach()

    def __getattr__(self, name: str) -> Any:
        raise ApartError(f"its loss uses ctx.{name}")


class Together:
    """Programs of one key, at least two.

    Raises: ApartError if they cannot run as one.
    """

    def __init__(self, programs: Sequence[Program]) -> None:
        self._lanes = [program.epochs for program in programs]
        self._build = programs[0].build
        self._student = Stack([epochs.student for epochs in self._lanes])
        self._kept = [_kept([epochs.student for epochs in self._lanes])]
        self._fixed: dict[int, Stack] = {}
        self._tensors: dict[int, Tensor] = {}
        self._shared: dict[int, Any] = {}
        self._context = -1
        for place, leaves in enumerate(zip(*(program.leaves for program in programs), strict=True)):
            if place:  # the student comes first
                self._adopt(place, leaves)
        first = self._lanes[0].optimizer
        self._rule = first.rule
        trained = self._student.gradients.shape[1]
        updated = self._student.storage[:, :trained][:, first.part]
        self._updated, self._descents = list(updated), list(self._student.gradients[:, first.part])
        states = [epochs.optimizer.state() for epochs in self._lanes] if first.begun else None
        self._moments = states or self._fresh(updated)
        self._everybody = self._leaves(self._student.storage)
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, list[int]] = {}
        self._drawn = [0] * len(self._lanes)

    def _adopt(self, place: int, leaves: Sequence[Any]) -> None:
        first = leaves[0]
        if isinstance(first, FlatModule):
            if first.module.training:
                raise ApartError("its loss runs a second model in train mode")
            self._shared[place] = first  # computes for all
            stack = Stack(leaves)
            self._kept.append(_kept(leaves))
            if not stack.same():
                self._fixed[place] = stack
        elif isinstance(first, Tensor):
            if all(_same_memory(first, other) for other in leaves):
                self._shared[place] = first
            elif first.requires_grad:
                raise ApartError("its loss uses a tensor that takes a gradient")
            else:
                self._tensors[place] = torch.stack(list(leaves))
        else:
            self._context = place

    def _fresh(self, updated: Tensor) -> list[Moments]:
        """Every lane's moments before its first step, rows of one tensor; counters are each its own."""
        whole = self._rule.fresh(updated)
        rows = {name: list(value) if value.dim() else None for name, value in whole.items()}
        return [
            {name: whole[name].clone() if own is None else own[lane] for name, own in rows.items()}
            for lane in range(len(updated))
        ]

    def run(self) -> None:
        """All epochs of all lanes; students, optimisers and contexts then are as after their own."""
        try:
            self._steps()
        except BaseException:
            for kept in self._kept:
                kept.restore()
            raise
        self._student.hand_back()
        sums = {name: column.tolist() for name, column in self._sums.items()}
        for lane, epochs in enumerate(self._lanes):
            epochs.optimizer.go_on_from(self._moments[lane])
            counts = {name: own[lane] for name, own in self._counts.items()}
            epochs.ctx.log_sums({name: (sums[name][lane], count) for name, count in counts.items() if count})
            epochs.ctx.count_drawn(self._drawn[lane])

    def _steps(self) -> None:
        with warnings.catch_warnings():
            # Some losses' operations run lane by lane inside of vmap: slower, still right.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            for lanes, batches in _rounds([_batches(epochs) for epochs in self._lanes]):
                self._step(lanes, batches)
        if not all(kept.as_it_was for kept in self._kept):
            raise ApartError("its loss changes an attribute of a model")

    def _step(self, lanes: Sequence[int], drawn: Sequence[Drawn]) -> None:
        """One step of these lanes, each on its next batch."""
        stack, every = self._student, len(lanes) == len(self._lanes)
        images, labels = self._lanes[0].ctx.gathered(drawn)
        where = slice(None) if every else torch.tensor(lanes, device=stack.storage.device)
        rows = stack.storage if every else stack.storage[where]
        parameters = self._everybody if every else self._leaves(rows)
        places = stack.buffers(rows, [whole[where] for whole in stack.integers])
        buffers = [place.clone() for place in places]  # vmap loses updates in place of strided views
        losses, logged = self._losses(where, (parameters, buffers), images, labels)
        found = torch.autograd.grad(losses.sum(), parameters, materialize_grads=True)
        with torch.no_grad():
            for place, gradient in zip(stack.parameters(stack.gradients[: len(lanes)]), found, strict=True):
                place.copy_(gradient)
            moments = [self._moments[lane] for lane in lanes]
            self._rule.step([self._updated[lane] for lane in lanes], self._descents[: len(lanes)], moments)
            stack.keep_buffers(where, buffers)
        self._note(lanes, where, logged, len(drawn[0].indices))

    def _note(self, lanes: Sequence[int], where: Any, logged: Mapping[str, Tensor], samples: int) -> None:
        for name, values in logged.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros(len(self._lanes), dtype=torch.float64, device=values.device)
                self._counts[name] = [0] * len(self._lanes)
            self._sums[name][where] += values.detach().to(torch.float64)
            for lane in lanes:
                self._counts[name][lane] += 1
        for lane in lanes:
            self._drawn[lane] += samples

    def _leaves(self, rows: Tensor) -> list[Tensor]:
        """The rows' parameters as leaves, in the same memory."""
        return [view.detach().requires_grad_() for view in self._student.parameters(rows)]

    def _losses(
        self, where: Any, student: tuple[list[Tensor], list[Tensor]], images: Tensor, labels: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """[m] losses with gradient, and what each logs, [m] each."""
        fixed = {place: stack.storage[where] for place, stack in self._fixed.items()}
        seen = {
            place: (
                stack.parameters(fixed[place]),
                stack.buffers(fixed[place], [i[where] for i in stack.integers]),
            )
            for place, stack in self._fixed.items()
        }
        own = {place: tensor[where] for place, tensor in self._tensors.items()}
        ctx, programs = self._lanes[0].ctx, self._fixed

        def lane(student: Any, seen: Any, own: Any, images: Tensor, labels: Tensor) -> Any:
            caught = _Logged(ctx)
            with ExitStack() as standing:
                standing.enter_context(self._student.standing_in(*student))
                for place, tensors in seen.items():
                    standing.enter_context(programs[place].standing_in(*tensors))
                new = {0: self._lanes[0].student, self._context: caught, **self._shared, **own}
                loss = self._build(new)(images, labels)
            return loss, caught.values

        versions = [tensor._version for tensor in own.values()]
        found = torch.vmap(lane)(student, seen, own, images, labels)
        if versions != [tensor._version for tensor in own.values()]:
            raise ApartError("its loss changes a tensor in place")
        losses: Tensor = found[0]
        if losses.dim() != 1:
            raise ApartError("its loss is no scalar")
        return losses, found[1]


def _kept(modules: Sequence[FlatModule]) -> Kept:
    """What the modules' attributes hold: the first one's count for all."""
    kept = Kept(modules[0])
    if not all(kept.same_in(other) for other in modules[1:]):
        raise ApartError("it sets an attribute of a model to something of its own")
    return kept


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return one is other or (
        one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()
    )


def _batches(epochs: LocalEpochs) -> Iterator[Drawn]:
    for epoch in epochs.epochs:
        yield from epochs.ctx.batches(epoch)


def _rounds(batches: Sequence[Iterator[Drawn]]) -> Iterator[tuple[list[int], list[Drawn]]]:
    """Who steps together: of the lanes' next batches those of the commonest size."""
    following = {lane: drawn for lane, own in enumerate(batches) if (drawn := next(own, None)) is not None}
    while following:
        sizes = Counter(len(drawn.indices) for drawn in following.values())
        size = max(sizes, key=lambda one: (sizes[one], one))
        lanes = [lane for lane, drawn in following.items() if len(drawn.indices) == size]
        yield lanes, [following[lane] for lane in lanes]
        for lane in lanes:
            drawn = next(batches[lane], None)
            if drawn is None:
                del following[lane]
            else:
                following[lane] = drawn
