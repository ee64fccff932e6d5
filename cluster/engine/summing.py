"""What a host does under `local.sum_replies`: groups of steps, and a sum of each averaged part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from rayfed_kd.cluster.engine.calls import StepCall, StepError, StepFacts
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.running import Done, run_together
from rayfed_kd.models.vectors import WeightedSum
from rayfed_kd.protocol import Array, Averaged, to_array
from rayfed_kd.protocol.declaration import UNIFORM
from rayfed_kd.protocol.messages import Number, is_finite


def sum_groups(host: Host, groups: Sequence[Sequence[StepCall]]) -> Done:
    """Run groups of steps one after another, and add their replies together.

    No more than one group's parts are in memory at a time.

    Raises: StepError if the method raised for one of them, or a reply cannot be added to the others.
    """
    done, totals = Done([], [], [], {}), dict[str, WeightedSum]()
    for group in groups:
        for call, (facts, parts, state) in zip(group, run_together(host, group), strict=True):
            done.facts.append(_summed(host, call, facts, parts, totals))
            done.states.append(state)
    return done._replace(sums={name: to_array(total.total) for name, total in totals.items()})


def _summed(
    host: Host, call: StepCall, facts: StepFacts, parts: Mapping[str, Array], sums: dict[str, WeightedSum]
) -> StepFacts:
    """Add a reply to the sums; the facts with the weights that were used."""
    decoded, weights = host.setting.wires["up"].decoded(parts), dict[str, float]()
    for name, part in host.setting.method.up.items():
        if name in decoded and isinstance(part, Averaged):
            weights[name] = _weight(call, name, part.by, facts.metadata)
            _add(call, name, sums, decoded[name], weights[name])
    return replace(facts, weights=weights)


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
    # Only to be copied from: torch would warn of memory that it may not write to.
    total.add(torch.from_numpy(np.require(array, requirements="W")), weight)
