"""Evaluates models on a host: shared ones, and clients' own, whose states it has or fetches."""

from __future__ import annotations

import torch

from rayfed_kd.cluster.engine.calls import EvaluationCall, EvaluationResult, PersonalCall, PersonalResult
from rayfed_kd.cluster.engine.exchanged import one_line
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.protocol import DispatchFacts, Evaluated, to_tensor
from rayfed_kd.protocol.evaluated import check_model, composite


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
