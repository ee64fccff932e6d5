"""What a host does under `local.sum_replies`: a group's steps, and one sum for each averaged part.

Where the server keeps clients' latest parts in slots, a second sum is of the slots that the group replaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cluster.engine.calls import LiveState, StepCall, StepError, StepFacts, StepResult
from cluster.engine.host import Host
from rayfed_kd.models.vectors import WeightedSum
from rayfed_kd.protocol import Array, Handle, to_array
from rayfed_kd.protocol.messages import Number, is_finite
from rayfed_kd.protocol.summed import GroupSum, of_slots


class Summed(NamedTuple):
    """The results of a group's steps; all lists in the calls' order.

    Attributes:
        facts: with the weights that were used.
        sums: by part, float64; those of replaced slots by `of_slots(part)`.
        states: the clients' new ones.
        singles: each client's own encoded parts, which the server keeps in slots; empty: it keeps none.
    """

    facts: list[StepFacts]
    sums: Mapping[str, Array]
    states: list[LiveState]
    singles: list[Mapping[str, Array]]


def cut(calls: Iterable[StepCall], sizes: Sequence[int]) -> list[list[StepCall]]:
    """Calls in groups of these sizes, in order."""
    rest = iter(calls)
    return [list(islice(rest, size)) for size in sizes]


def summed_steps(host: Host, groups: Sequence[Sequence[StepCall]]) -> Summed:
    """Run steps whose replies are added together.

    No more than one group's parts are in memory at a time, but for those that go into slots.

    Args:
        host: runs the steps.
        groups: those in one group train as one batched program.
    Raises: StepError if the method raised for one of them, or a reply cannot be added to the others.
    """
    averaged_by, wire = host.setting.method.averaged_by, host.setting.wires["up"]
    sums, facts, states = dict[str, WeightedSum](), list[StepFacts](), list[LiveState]()
    singles = list[Mapping[str, Array]]()
    for group in groups:
        if len(group) == 1:
            one, parts, state = host.step(group[0])
            outcomes = [(group[0], one, parts, state)]
        else:
            outcomes = list(zip(group, *host.steps(group), strict=True))
        for call, one, parts, state in outcomes:
            decoded, weights = wire.decoded(parts), dict[str, float]()
            for name, number in averaged_by.items():
                if name in decoded:
                    weights[name] = _weight(call, name, number, one.metadata)
                    _add(call, name, sums, decoded[name], weights[name])
            replaced = dict[str, float]()
            if call.replaces is not None:
                singles.append(parts)
                for name, (slot, weight) in call.replaces.items():
                    replaced[name] = weight
                    _add(call, of_slots(name), sums, to_array(slot.load()), weight)
            facts.append(replace(one, weights=weights, replaced=replaced))
            states.append(state)
    totals = {name: to_array(one.total) for name, one in sums.items()}
    return Summed(facts, totals, states, singles)


def summed_results(
    facts: Sequence[StepFacts], group: GroupSum, states: Sequence[Handle], singles: Iterable[Handle]
) -> list[StepResult]:
    """The results of a group as the server gets them; arguments as in `Summed`, by reference."""
    kept: Sequence[Handle | None] = list(singles) or [None] * len(facts)
    return [
        StepResult(one, group, state, single) for one, state, single in zip(facts, states, kept, strict=True)
    ]


def _weight(call: StepCall, part: str, number: str | None, metadata: Mapping[str, Number]) -> float:
    if number is None:
        return 1.0
    if number not in metadata:
        raise StepError(
            f"{call}: the reply has no number {number!r}, which weighs its part {part!r} by the method's "
            f"`averaged_by`; there are {sorted(metadata)}"
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
