"""What a host does when it is called: groups of steps; under `local.sum_replies` a sum of each averaged part.

Where the server keeps clients' latest parts in slots, a second sum is of the slots that the group replaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from rayfed_kd.cluster.engine.batching.group_steps import group_steps
from rayfed_kd.cluster.engine.calls import LiveState, StepCall, StepError, StepFacts, StepResult
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.models.vectors import WeightedSum
from rayfed_kd.protocol import Array, Averaged, Handle, to_array
from rayfed_kd.protocol.declaration import UNIFORM
from rayfed_kd.protocol.messages import Number, is_finite
from rayfed_kd.protocol.summed import GroupSum, of_slots

T = TypeVar("T")


class Done(NamedTuple):
    """The results of steps; all lists in the calls' order.

    Attributes:
        facts: with the weights of summed replies; for each step of a failed group its StepError.
        parts: encoded parts of each reply; of summed ones those that the server keeps in slots, or none.
        states: the clients' new ones.
        sums: of summed replies by part, float64; those of replaced slots by `of_slots(part)`.
    """

    facts: list[Any]  # StepFacts | StepError
    parts: list[Mapping[str, Array]]
    states: list[LiveState]
    sums: Mapping[str, Array]


def cut(items: Iterable[T], sizes: Sequence[int]) -> list[list[T]]:
    """Items, as calls, in groups of these sizes, in order."""
    rest = iter(items)
    return [list(islice(rest, size)) for size in sizes]


def run_groups(host: Host, groups: Sequence[Sequence[StepCall]], sums: bool) -> Done:
    """Run groups of steps one after another; the one unit of work of a host.

    With sums no more than one group's parts are in memory at a time, but for those that go into slots.

    Args:
        host: runs the steps.
        groups: those in one group train as one batched program; a group of one is a step.
        sums: whether to add the replies together.
    Raises: StepError if the method raised for one of them and the replies are summed, or one cannot be added
        to the others. Without sums the other groups do not need it, and it stands in their facts' place.
    """
    done, totals = Done([], [], [], {}), dict[str, WeightedSum]()
    for group in groups:
        try:
            outcomes = _outcomes(host, group)
        except StepError as error:
            if sums:
                raise
            outcomes = [(error, {}, LiveState(None))] * len(group)
        for call, (facts, parts, state) in zip(group, outcomes, strict=True):
            done.facts.append(_summed(host, call, facts, parts, totals) if sums else facts)
            done.states.append(state)
            if not sums or call.replaces is not None:
                done.parts.append(parts)
    return done._replace(sums={name: to_array(one.total) for name, one in totals.items()})


def _outcomes(host: Host, group: Sequence[StepCall]) -> Sequence[tuple[Any, Mapping[str, Array], LiveState]]:
    return [host.step(group[0])] if len(group) == 1 else group_steps(host, group)


def _summed(
    host: Host, call: StepCall, facts: StepFacts, parts: Mapping[str, Array], sums: dict[str, WeightedSum]
) -> StepFacts:
    """Add a reply, and the slots that it replaces, to the sums; the facts with the weights that were used."""
    decoded, weights = host.setting.wires["up"].decoded(parts), dict[str, float]()
    for name, part in host.setting.method.up.items():
        if name in decoded and isinstance(part, Averaged):
            weights[name] = _weight(call, name, part.by, facts.metadata)
            _add(call, name, sums, decoded[name], weights[name])
    replaced = dict[str, float]()
    for name, (slot, weight) in (call.replaces or {}).items():
        replaced[name] = weight
        _add(call, of_slots(name), sums, to_array(slot.load()), weight)
    return replace(facts, weights=weights, replaced=replaced)


def summed_results(
    facts: Sequence[StepFacts], group: GroupSum, states: Sequence[Handle], singles: Iterable[Handle]
) -> list[StepResult]:
    """The results of a group as the server gets them; arguments as in `Done`, by reference."""
    kept: Sequence[Handle | None] = list(singles) or [None] * len(facts)
    return [
        StepResult(one, group, state, single) for one, state, single in zip(facts, states, kept, strict=True)
    ]


def _weight(call: StepCall, part: str, number: str, metadata: Mapping[str, Number]) -> float:
    if number == UNIFORM:
        return 1.0
    if number not in metadata:
        raise StepError(
            f"{call}: the reply has no number {number!r}, by which the method declares its part {part!r} "
            f"Averaged; there are {sorted(metadata)}"
        )
    # The server refuses such a reply by its facts; here it must only not end the process's work.
    return float(metadata[number]) if is_finite(metadata[number]) else float("nan")


def _add(call: StepCall, part: str, sums: dict[str, WeightedSum], array: Array, weight: float) -> None:
    total = sums.get(part)
    if total is None:
        total = sums[part] = WeightedSum(torch.Size(array.shape))
    if total.total.shape != array.shape:
        raise StepError(
            f"{call}: part {part!r} has the shape {list(array.shape)}, others that are summed with it "
            f"{list(total.total.shape)}; expected equal ones, or local.sum_replies=off"
        )
    total.add(_tensor(array), weight)


def _tensor(array: Array) -> Tensor:
    # Only to be copied from: torch would warn of memory that it may not write to.
    return torch.from_numpy(array if array.flags.writeable else np.array(array))
