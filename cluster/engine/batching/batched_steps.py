"""The same training step of many clients as one program: losses under `torch.vmap`, then fused updates.

Batches of different sizes are never padded: a step takes the clients whose next batches have the commonest
shape. A client's order of batches, its random streams and its optimisers' moments are its own.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from rayfed_kd.cluster.engine.batching.stacked_modules import StackedModules
from rayfed_kd.cluster.engine.batching.step_program import GroupError, optimizers_of
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import ClientContext
from rayfed_kd.toolbox.local_training import LocalSteps, OwnBatch, Phase
from rayfed_kd.toolbox.optimizers import Optimizer

Rows = slice | Tensor  # which of a group's clients: all of them, or [m] int64


class BatchedSteps:
    """Local training of at least two clients of one program.

    Args:
        members: of equal `program_of`.
    """

    def __init__(self, members: Sequence[LocalSteps]) -> None:
        self._members = list(members)
        first = members[0]
        self._contexts = [cast(ClientContext, member.ctx) for member in members]
        self._models, self._phases = first.models, first.phases
        self._trained: dict[str, StackedModules] = {}
        self._frozen: dict[str, StackedModules] = {}
        names: dict[int, str] = {}
        for name, model in first.models.items():
            # A model under two names, as a student that is its own head, is stacked once.
            if names.setdefault(id(model), name) == name:
                self._stack(name, [member.models[name] for member in members])
        self._shared, self._own = _told_apart([member.extras for member in members])
        optimizers = [optimizers_of(member) for member in members]
        self._updates = [
            _Update(self._trained[names[id(opts[0].module)]], opts) for opts in zip(*optimizers, strict=True)
        ]
        places = {id(optimizer): place for place, optimizer in enumerate(optimizers[0])}
        self._of_phase = [[places[id(optimizer)] for optimizer in phase.optimizers] for phase in self._phases]
        self._trains = [
            list(dict.fromkeys(names[id(optimizer.module)] for optimizer in phase.optimizers))
            for phase in self._phases
        ]
        # Made once: they share the storage's memory, so updates in place reach them.
        self._everybody = {name: _leaves(stack, stack.storage) for name, stack in self._trained.items()}
        self._sums: dict[str, Tensor] = {}
        self._counts = defaultdict[str, Counter[int]](Counter)  # by place
        self._samples = [0] * len(members)

    def _stack(self, name: str, models: Sequence[FlatModule]) -> None:
        """One model of every client: stacked, or the first one for all where all are equal."""
        stack = StackedModules(models)
        if any(part.training for part in models[0].submodules):
            self._trained[name] = stack
        # Frozen and equal in all clients, as a received teacher: the first client's serves all. Not with
        # GroupNorm, whose own form fails in vmap: what stands in for a stack has another.
        elif stack.norms or not (stack.storage[1:] == stack.storage[:1]).all():
            self._frozen[name] = stack

    def run(self) -> None:
        """Makes all steps; models, optimisers and contexts then are as after the clients' own.

        Raises: GroupError, or what the losses raised.
        """
        with warnings.catch_warnings():
            # Some losses' operations run client by client inside of vmap: slower, still right.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            for places, batches in steps_of_one_shape([iter(member.batches) for member in self._members]):
                self._step(places, batches)
        for stack in self._trained.values():
            stack.hand_back()
        for update in self._updates:
            update.hand_back()
        sums = {name: column.tolist() for name, column in self._sums.items()}
        for place, ctx in enumerate(self._contexts):
            counts = {name: row[place] for name, row in self._counts.items()}
            ctx.log_sums({name: (sums[name][place], count) for name, count in counts.items() if count})
            ctx.count_drawn(self._samples[place])

    def _step(self, places: Sequence[int], batches: Sequence[OwnBatch]) -> None:
        """One step of these clients, each on its next batch."""
        everybody = len(places) == len(self._members)
        rows: Rows = slice(None) if everybody else torch.tensor(places, device=self._contexts[0].device)
        batch = self._gathered(places, batches)
        leaves = dict(self._everybody) if everybody else {n: self._some(n, rows) for n in self._trained}
        for phase, updates, trains in zip(self._phases, self._of_phase, self._trains, strict=True):
            losses, logged, handed_on = self._losses(phase, rows, leaves, batch)
            if updates:
                wanted = [leaf for name in trains for leaf in leaves[name]]
                # Row i alone is in loss i: the sum's gradient is each client's own. A parameter that no loss
                # reaches gets 0, as in `minimise`: momentum and weight decay still move it.
                gradients = iter(torch.autograd.grad(losses.sum(), wanted, materialize_grads=True))
                with torch.no_grad():
                    for name in trains:
                        stack = self._trained[name]
                        for place in stack.parameters(stack.gradients[: len(places)]):
                            place.copy_(next(gradients))
                    for update in updates:
                        self._updates[update].step(places)
            if not everybody:
                # These leaves are copies. Those of models that did not move are kept: what is handed on
                # may be differentiated with respect to them.
                leaves.update({name: self._some(name, rows) for name in trains})
            self._note(places, rows, logged)
            batch.update(handed_on)

    def _gathered(self, places: Sequence[int], batches: Sequence[OwnBatch]) -> dict[str, Tensor]:
        """Batches of one shape as [m, ...] tensors; samples are read of all clients at once."""
        further = [tensors for _, tensors in batches]
        batch = {name: torch.stack([row[name] for row in further]) for name in further[0]}
        drawn = [part for part, _ in batches if part is not None]
        if drawn:
            batch["images"], batch["labels"] = self._contexts[0].gathered(drawn)
            for place in places:
                self._samples[place] += len(drawn[0].indices)
        return batch

    def _some(self, name: str, rows: Rows) -> list[Tensor]:
        return _leaves(self._trained[name], self._trained[name].storage[rows])

    def _losses(
        self, phase: Phase, rows: Rows, leaves: Mapping[str, list[Tensor]], batch: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """[m] losses with gradient, and what each logs and hands on, [m, ...] each."""
        # Cloned, because vmap loses updates in place of strided views.
        buffers = {name: [b.clone() for b in stack.buffers_of(rows)] for name, stack in self._trained.items()}
        frozen = {
            name: (stack.parameters(stack.storage[rows]), stack.buffers_of(rows))
            for name, stack in self._frozen.items()
        }
        trained = {name: (leaves[name], buffers[name]) for name in self._trained}
        extras = {name: tensor[rows] for name, tensor in self._own.items()}

        def client_loss(trained: Any, frozen: Any, extras: Any, batch: Any) -> Any:
            with ExitStack() as standing:
                for name, tensors in trained.items():
                    standing.enter_context(self._trained[name].standing_in(*tensors))
                for name, tensors in frozen.items():
                    standing.enter_context(self._frozen[name].standing_in(*tensors))
                loss = phase.loss(self._models, batch, {**self._shared, **extras})
            return loss.value, dict(loss.logged), dict(loss.handed_on)

        # Under vmap a write in place to a client's row succeeds; only the version counter shows it.
        versions = [tensor._version for tensor in extras.values()]
        # In vmap torch 2.13's BatchNorm has a wrong gradient of one sample alone, on channels-last maps.
        single = any(part.shape[:2] == (1, 1) for part in batch.values())
        together = partial(_of_one, client_loss) if single else torch.vmap(client_loss)
        losses, logged, handed_on = together(trained, frozen, extras, batch)
        if versions != [tensor._version for tensor in extras.values()]:
            raise GroupError("its loss changes a tensor that it is given, in place")
        if losses.dim() != 1:
            raise GroupError("its loss is no scalar")
        for name, stack in self._trained.items():
            stack.keep_buffers(rows, buffers[name])
        return losses, logged, handed_on

    def _note(self, places: Sequence[int], rows: Rows, logged: Mapping[str, Tensor]) -> None:
        for name, values in logged.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros(len(self._members), dtype=torch.float64, device=values.device)
            self._sums[name][rows] += values.detach().to(torch.float64)
            self._counts[name].update(places)


class _Update:
    """One optimiser of every client, as fused operations on the rows of a stack."""

    def __init__(self, stack: StackedModules, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers, first = optimizers, optimizers[0]
        self._rule, rows = first.rule, stack.storage[:, : stack.gradients.shape[1]][:, first.part]
        self._parameters, self._gradients = list(rows), list(stack.gradients[:, first.part])
        self._moments = [opt.state(spaced=True) for opt in optimizers] if first.begun else self._fresh(rows)
        self._steps, self._paced = [opt.steps for opt in optimizers], any(opt.pace for opt in optimizers)

    def _fresh(self, parameters: Tensor) -> list[dict[str, Tensor]]:
        """Every client's moments before its first step, rows of one tensor; a counter is each one's own."""
        moments = self._rule.fresh(parameters)
        return [
            {name: value[place] if value.dim() else value.clone() for name, value in moments.items()}
            for place in range(len(parameters))
        ]

    def step(self, places: Sequence[int]) -> None:
        """Updates these clients' rows; their gradients stand in the stack's first rows."""
        for factor, rows in self._rows_by_factor(places).items():
            self._rule.step(
                [self._parameters[places[row]] for row in rows],
                [self._gradients[row] for row in rows],
                [self._moments[places[row]] for row in rows],
                factor,
            )
        for place in places:
            self._steps[place] += 1

    def _rows_by_factor(self, places: Sequence[int]) -> Mapping[float, Sequence[int]]:
        """Which rows step at which factor of the learning rate; all at 1 where it does not change."""
        if not self._paced:
            return {1.0: range(len(places))}
        rows = defaultdict[float, list[int]](list)
        for row, factor in enumerate(self._optimizers[k].factor_at(self._steps[k]) for k in places):
            rows[factor].append(row)
        return rows

    def hand_back(self) -> None:
        """Gives every client's optimiser its moments and its count of steps."""
        for optimizer, moments, steps in zip(self._optimizers, self._moments, self._steps, strict=True):
            optimizer.go_on_from(moments, steps)


def _of_one(function: Callable[..., Any], *arguments: Any) -> Any:
    """What `torch.vmap` of the function gives for a single row, without it."""
    value, *further = function(*map(_first, arguments))
    return value[None], *({name: tensor[None] for name, tensor in each.items()} for each in further)


def _first(rows: Any) -> Any:
    """The first row of tensors in dicts and lists."""
    if isinstance(rows, Mapping):
        return {name: _first(inner) for name, inner in rows.items()}
    return rows[0] if isinstance(rows, Tensor) else list(map(_first, rows))


def _leaves(stack: StackedModules, rows: Tensor) -> list[Tensor]:
    """The rows' parameters as leaves, in the same memory."""
    # `.data` does not share the version counter: running statistics lie in the same memory, and writing
    # them must not spoil a graph that is handed on to a later phase. A module's own parameters are such, too.
    return [view.data.requires_grad_() for view in stack.parameters(rows)]


def _told_apart(extras: Sequence[Mapping[str, Tensor]]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors that all clients share, and those that differ, stacked as [n, ...]."""
    shared, stacks = {}, {}
    for name, first in extras[0].items():
        tensors = [each[name] for each in extras]
        if len({(tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in tensors}) == 1:
            shared[name] = first
        else:
            stacks[name] = torch.stack(tensors)
    return shared, stacks


def steps_of_one_shape(batches: Sequence[Iterator[OwnBatch]]) -> Iterator[tuple[list[int], list[OwnBatch]]]:
    """Yield which clients step together, until no client has a batch left.

    Yields: places of the clients whose next batches have the commonest shape, and these batches.
    """
    current = [next(feed, None) for feed in batches]
    while shapes := {place: _shape(batch) for place, batch in enumerate(current) if batch is not None}:
        counts = Counter(shapes.values())
        # Equal counts: the largest shape, so that the order of clients decides nothing.
        commonest = max(counts, key=lambda shape: (counts[shape], shape))
        places = [place for place, shape in shapes.items() if shape == commonest]
        yield places, [batch for place in places if (batch := current[place]) is not None]
        for place in places:
            current[place] = next(batches[place], None)


def _shape(batch: OwnBatch) -> tuple[int, tuple[tuple[int, ...], ...]]:
    drawn, further = batch
    return 0 if drawn is None else len(drawn.indices), tuple(tuple(value.shape) for value in further.values())
