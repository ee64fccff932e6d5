"""The work of a host: groups of steps, one after another, and evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import torch

from rayfed_kd.cluster.engine.calls import (
    EvaluationCall,
    EvaluationResult,
    LiveState,
    PersonalCall,
    PersonalResult,
    StepCall,
    StepError,
)
from rayfed_kd.cluster.engine.exchanged import one_line
from rayfed_kd.cluster.engine.host import Host, HostResult
from rayfed_kd.protocol import Array, DispatchFacts, Evaluated, to_tensor
from rayfed_kd.protocol.evaluated import check_model, composite

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


def evaluate(host: Host, call: EvaluationCall | PersonalCall) -> EvaluationResult | PersonalResult:
    """Evaluate a shared model on a stretch of test samples, or a client's own model.

    Raises: StepError if the model or the method raised.
    """
    try:
        if isinstance(call, EvaluationCall):
            return host.evaluating.shared(call)
        model = host.evaluating.frozen(personal_model(host, call))
        result = host.evaluating.of_client(call.client, call.split, model)
        return PersonalResult(int(result.correct.sum()), bool(result.finite.all()), result.logits)
    except host.caught as error:
        raise one_line(call, error) from error
    finally:
        # `tested` does so, too; this is for an error before it.
        host.module_pool.take_back()


def personal_model(host: Host, call: PersonalCall) -> Evaluated:
    """A client's own model, which the method makes from the client's state, before the server's part if any.

    Returns: its vector, and the names of its architectures in the module pool.
    """
    # Participations count from 1, so participation 0 shares no random stream with a client's steps. A
    # client without a state gets the one that its first step, of participation 1, will start from.
    ctx, first = (host.context(DispatchFacts(call.client, 0, time)) for time in (0, 1))
    ctx.compute_exactly()  # an evaluation does so, whatever local training does
    state = host.kept_state(call.state, call.state_version, first).state
    evaluated = Evaluated.of(host.setting.method.personal(state, ctx))
    names = list(map(ctx.architecture, evaluated.parts))
    evaluated = Evaluated(evaluated.vector, composite(names) if evaluated.is_composite else "".join(names))
    check_model(evaluated, host.module_pool.lengths, host.setting.method, "personal gave a model")
    if call.part is None:
        return evaluated
    part = to_tensor(call.part.vectors.resolve()[call.part.name], ctx.device)
    vector = torch.cat([evaluated.vector.to(part), part])
    return Evaluated(vector, composite([*names, call.part.architecture]))
