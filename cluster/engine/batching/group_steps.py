"""The steps of a group of clients at a host, with their local epochs as one batch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Protocol

from rayfed_kd.cluster.engine.batching.group_training import run_group
from rayfed_kd.cluster.engine.calls import LiveState, StepCall, StepFacts
from rayfed_kd.cluster.engine.outcomes import one_line
from rayfed_kd.models.module_pool import ModulePool
from rayfed_kd.protocol import Array, ClientContext, DispatchFacts

Results = list[tuple[StepFacts, Mapping[str, Array], LiveState]]


class GroupHost(Protocol):
    """What a group needs of its host; see `Host`."""

    module_pool: ModulePool
    caught: tuple[type[BaseException], ...]

    def context(self, facts: DispatchFacts) -> ClientContext: ...
    def surroundings(self, call: StepCall) -> AbstractContextManager[None]: ...
    def answer(
        self, call: StepCall, ctx: ClientContext
    ) -> tuple[StepFacts, Mapping[str, Array], LiveState]: ...
    @property
    def rss_mb(self) -> float: ...


def group_steps(host: GroupHost, calls: Sequence[StepCall]) -> Results:
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
    seconds, rss_mb = (time.perf_counter() - started) / len(calls), host.rss_mb
    return [
        (replace(facts, seconds=seconds, grouped=True, rss_mb=rss_mb), parts, state)
        for facts, parts, state in results
    ]
