"""The steps of a group of clients at a host, with their local epochs as one batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rayfed_kd.cluster.engine.batching.group_training import run_group
from rayfed_kd.cluster.engine.calls import StepCall
from rayfed_kd.cluster.engine.exchanged import one_line
from rayfed_kd.cluster.engine.host import Host, HostResult


def group_steps(host: Host, calls: Sequence[StepCall]) -> list[HostResult]:
    """Run the steps of a group; the results are in the calls' order.

    Raises: StepError if the method raised for one of them or its state cannot be stored.
    """
    started = time.perf_counter()
    contexts = [host.context(call.facts) for call in calls]
    steps = [(ctx, partial(host.answer, call, ctx)) for call, ctx in zip(calls, contexts, strict=True)]
    try:
        with host.surroundings(calls[0]):
            results = run_group(steps)
    except host.caught as error:
        clients = ", ".join(str(call.facts.client) for call in calls)
        where = f"round {calls[0].facts.round}, clients {clients}, {calls[0].step}"
        raise one_line(f"{where} (local.vectorise=off trains each by itself)", error) from error
    finally:
        # Not after each step: it waits in the middle of its work while others run, and needs its modules.
        host.module_pool.take_back()
    # The clients' turns interleave, so that only the group's time is known.
    return [
        (replace(facts, grouped=True), parts, state)
        for facts, parts, state in host.measured(results, started)
    ]
