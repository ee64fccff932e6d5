"""The one unit of work of a host: groups of steps, one after another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from rayfed_kd.cluster.engine.calls import LiveState, StepCall, StepError
from rayfed_kd.cluster.engine.host import Host, HostResult
from rayfed_kd.protocol import Array

T = TypeVar("T")


class Done(NamedTuple):
    """The results of steps; all lists in the calls' order.

    Attributes:
        facts: with the weights of summed replies; for each step of a failed group its StepError.
        parts: encoded parts of each reply; none where replies are summed.
        states: the clients' new ones.
        sums: of summed replies by part, float64.
    """

    facts: list[Any]  # StepFacts | StepError
    parts: list[Mapping[str, Array]]
    states: list[LiveState]
    sums: Mapping[str, Array]


def cut(items: Iterable[T], sizes: Sequence[int]) -> list[list[T]]:
    """Items, as calls, in groups of these sizes, in order."""
    rest = iter(items)
    return [list(islice(rest, size)) for size in sizes]


def run_together(host: Host, group: Sequence[StepCall]) -> Sequence[HostResult]:
    """Run steps that train as one batched program; a group of one is a step.

    Raises: StepError if the method raised for one of them.
    """
    if len(group) == 1:
        return [host.step(group[0])]
    from rayfed_kd.cluster.engine.batching.group_training import group_steps  # which a plain run needs not

    return group_steps(host, group)


def run_groups(host: Host, groups: Sequence[Sequence[StepCall]]) -> Done:
    """Run groups of steps one after another; the StepError of one that fails stands in its facts' place."""
    done = Done([], [], [], {})
    for group in groups:
        try:
            outcomes: Sequence[tuple[Any, Mapping[str, Array], LiveState]] = run_together(host, group)
        except StepError as error:
            outcomes = [(error, {}, LiveState(None))] * len(group)
        for facts, parts, state in outcomes:
            done.facts.append(facts)
            done.parts.append(parts)
            done.states.append(state)
    return done
