"""What a host does under `local.sum_replies`: a group's steps, and one sum for each averaged part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from cluster.engine.calls import LiveState, StepCall, StepError, StepFacts
from cluster.engine.host import Host
from rayfed_kd.models.vectors import WeightedSum
from rayfed_kd.protocol import Array, to_array
from rayfed_kd.protocol.messages import Number, is_finite


def summed_steps(
    host: Host, groups: Sequence[Sequence[StepCall]]
) -> tuple[list[StepFacts], Mapping[str, Array], list[LiveState]]:
    """Run steps whose replies are added together. No more than one group's parts are in memory at a time.

    Args:
        host: runs the steps.
        groups: those in one group train as one batched program.
    Returns: the steps' facts with the weights that were used, the sums by part, float64, and the
        states; facts and states in the calls' order.
    Raises: StepError if the method raised for one of them, or a reply cannot be added to the others.
    """
    averaged_by, wire = host.setting.method.averaged_by, host.setting.wires["up"]
    sums, facts, states = dict[str, WeightedSum](), list[StepFacts](), list[LiveState]()
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
            facts.append(replace(one, weights=weights))
            states.append(state)
    return facts, {name: to_array(one.total) for name, one in sums.items()}, states


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
