"""The steps of a group of clients at a host, with their local epochs as one batched program.

Each client's step runs as it is written, as a greenlet, until it comes to local training in the form that
batches (rayfed_kd/toolbox/local_training.py). There it waits for the other clients of the group. Clients of
equal `program_of` are then trained as one (cluster/engine/batching/batched_steps.py), a client that nobody is
equal to trains by itself, and every step goes on with its own trained models.

Results differ from those of clients trained alone only by how sums are rounded. They depend on which clients
are in the group and on nothing else. Whether there are groups is decided before the first round
(rayfed_kd/setting/client_groups.py); what fails here is an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TypeVar

from greenlet import getcurrent, greenlet

from rayfed_kd.cluster.engine.batching.batched_steps import BatchedSteps
from rayfed_kd.cluster.engine.batching.step_program import program_of
from rayfed_kd.cluster.engine.calls import StepCall
from rayfed_kd.cluster.engine.exchanged import one_line
from rayfed_kd.cluster.engine.host import Host, HostResult
from rayfed_kd.protocol import ClientContext
from rayfed_kd.toolbox.local_training import LocalSteps

T = TypeVar("T")


def run_group(steps: Sequence[tuple[ClientContext, Callable[[], T]]]) -> list[T]:
    """Run one step of each client of a group.

    Args:
        steps: every client's context, and its step to be called.
    Returns: the steps' results, in the order given.
    Raises: what a step raised, or what their common training did.
    """
    turns = [greenlet(step) for _, step in steps]
    results: dict[int, T] = {}
    for ctx, _ in steps:
        ctx.group_runner = _wait
    running = list(range(len(steps)))
    try:
        while running:
            training: dict[int, LocalSteps] = {}
            for place in running:
                came = turns[place].switch()
                if turns[place].dead:
                    results[place] = came
                else:
                    training[place] = came
            _train(list(training.values()))
            running = list(training)
    finally:
        for (ctx, _), turn in zip(steps, turns, strict=True):
            ctx.group_runner = None
            # Another step has raised: unwind this one, so that its `finally` blocks run now.
            if not turn.dead:
                turn.throw()
    return [results[place] for place in range(len(steps))]


def _train(training: Sequence[LocalSteps]) -> None:
    programs: dict[Hashable, list[LocalSteps]] = {}
    for steps in training:
        programs.setdefault(program_of(steps), []).append(steps)
    for members in programs.values():
        if len(members) == 1:
            members[0].run()
        else:
            BatchedSteps(members).run()


def _wait(steps: LocalSteps) -> None:
    """Leave a client's step until the group has made its training."""
    parent = getcurrent().parent
    assert parent is not None  # a step's greenlet was made by `run_group`
    parent.switch(steps)


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
    return host.measured(results, started)
