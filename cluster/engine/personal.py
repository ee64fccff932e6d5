"""Evaluates clients' own models on a host, which has their states or fetches them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from rayfed_kd.cluster.engine.calls import PersonalCall, PersonalResult, SharedPart
from rayfed_kd.cluster.engine.exchanged import one_line
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.protocol import ClientContext, DispatchFacts, Evaluated, to_tensor
from rayfed_kd.protocol.evaluated import check_model


def evaluate_personal(host: Host, call: PersonalCall) -> PersonalResult:
    """Evaluate a client's own model.

    Raises: StepError if the method raised.
    """
    try:
        if call.part is None:
            model: Callable[[Tensor], Tensor] = host.evaluating.frozen(personal_model(host, call))
        else:
            model = _completed(host, call, call.part)
        result = host.evaluating.of_client(call.client, call.split, model)
        return PersonalResult(int(result.correct.sum()), bool(result.finite.all()), result.logits)
    except host.caught as error:
        raise one_line(call, error) from error
    finally:
        # `tested` does so, too; this is for an error before it.
        host.module_pool.take_back()


def personal_model(host: Host, call: PersonalCall) -> Evaluated:
    """A client's own model, which the method makes from the client's state.

    Returns: its vector, and the name of its architecture in the module pool.
    """
    state, ctx = _state_and_context(host, call)
    model = host.setting.method.personal(state, ctx)
    evaluated = model if isinstance(model, Evaluated) else Evaluated(model, "model")
    evaluated = replace(evaluated, architecture=ctx.architecture(evaluated.architecture))
    check_model(evaluated, host.module_pool.lengths, "personal gave a model")
    return evaluated


def _completed(host: Host, call: PersonalCall, part: SharedPart) -> Callable[[Tensor], Tensor]:
    """A client's first layers followed by the server's part."""
    state, ctx = _state_and_context(host, call)
    vector = to_tensor(part.vectors.resolve()[part.name], ctx.device)
    frozen = host.evaluating.frozen(Evaluated(vector, part.architecture))
    return host.setting.method.completed(state, frozen, ctx)


def _state_and_context(host: Host, call: PersonalCall) -> tuple[Any, ClientContext]:
    """A client's state, and the context in which the method makes a model from it."""
    # Participations count from 1, so participation 0 shares no random stream with a client's steps. A
    # client without a state gets the one that its first step, of participation 1, will start from.
    ctx, first = (host.context(DispatchFacts(call.client, 0, time)) for time in (0, 1))
    ctx.compute_exactly()  # an evaluation does so, whatever local training does
    return host.kept_state(call.state, call.state_version, first).state, ctx
