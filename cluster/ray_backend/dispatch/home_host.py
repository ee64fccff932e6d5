"""A host in the server's own process: one process less, and no call to Ray for its share of a round.

It works in the server's thread while that waits for replies. In a thread of its own it would take turns with
the server, whose modules draw from the same global generators of torch.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from cluster.engine.calls import EvaluationCall, PersonalCall, StepError
from cluster.engine.host import Host
from cluster.engine.local import LocalEngine
from cluster.engine.summing import cut
from cluster.ray_backend.dispatch.jobs import Job
from cluster.ray_backend.handles import Ahead, stored
from cluster.ray_backend.mailbox import Mailbox
from rayfed_kd.errors import RunError


class HomeHost:
    """Host 0, where the server's thread trains clients.

    Args:
        host: computes.
        mailbox: the server's.
    Attributes:
        overdue: why the run must end: a call that takes too long cannot be ended here without the server;
            empty: it need not.
    """

    most_calls = 1  # the next is there at once, and meanwhile may go to another host
    waits_its_turn = True
    replaceable = False

    def __init__(self, host: Host, mailbox: Mailbox) -> None:
        self._engine, self._mailbox = LocalEngine(host), mailbox
        self.overdue = ""

    def build(self) -> asyncio.Future[Any]:
        """It is built."""
        built = asyncio.get_running_loop().create_future()
        built.set_result(None)
        return built

    async def call(self, jobs: Sequence[Job], ahead: Ahead, begun: Callable[[], None]) -> list[Any]:
        """Leave jobs to the server's thread, and wait for it."""
        loop = asyncio.get_running_loop()
        answer = loop.create_future()

        def work() -> None:
            loop.call_soon_threadsafe(begun)
            try:
                # As in a process of its own: the server may wait in the middle of a block without gradients.
                with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
                    outcomes = self._outcomes(jobs)
            except Exception as error:
                loop.call_soon_threadsafe(_settle, answer, None, error)
            else:
                loop.call_soon_threadsafe(_settle, answer, outcomes, None)

        self._mailbox.post(work)
        return await answer  # type: ignore[no-any-return]

    def replace(self, why: str) -> None:
        """End the run, as after Ctrl-C: whoever runs it looks at `overdue`."""
        self.overdue = why
        main = threading.main_thread().ident
        assert main is not None
        # Not `interrupt_main`, which a wait outside of Python does not notice.
        signal.pthread_kill(main, signal.SIGINT)

    def end(self) -> None:
        """Nothing: it ends with the run."""

    def _outcomes(self, jobs: Sequence[Job]) -> list[Any]:
        """For each job its results or its error, as `call_host` gives them."""
        if all(job.done for job in jobs):  # given up or stopped while they lay in the mailbox
            return [RunError("given up")] * len(jobs)
        return [self._results(jobs[0])] if len(jobs) == 1 else [self._one_of_several(job) for job in jobs]

    def _results(self, job: Job) -> list[Any]:
        call, engine = job.calls[0], self._engine
        if isinstance(call, EvaluationCall):
            return [engine.evaluate(call).result()]
        if isinstance(call, PersonalCall):
            return [engine.evaluate_personal(call).result()]
        done = engine.submit_summed(cut(job.calls, job.summed)) if job.summed else engine.submit(job.calls)
        # Into the store, which spills to the disk if it is full, and from which another host may fetch.
        return [stored(future.result()) for future in done]

    def _one_of_several(self, job: Job) -> Any:
        try:
            return self._results(job)
        except StepError as error:  # the other steps are independent of it
            return error


def _settle(answer: asyncio.Future[Any], outcomes: Any, error: Exception | None) -> None:
    with suppress(asyncio.InvalidStateError):  # nobody waits for it any more
        if error is None:
            answer.set_result(outcomes)
        else:
            answer.set_exception(error)
