"""Work for the server's thread, which does it while it waits for something else."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class Mailbox:
    """Work that other threads post. The thread that calls `result` or `empty` does it, in that order.

    What a piece of work raises is raised there.
    """

    def __init__(self) -> None:
        self._posted = SimpleQueue[Callable[[], object] | None]()  # None: look whether the future is done

    def post(self, work: Callable[[], object]) -> None:
        """Leave work for the server's thread. May be called from any thread."""
        self._posted.put(work)

    def result(self, future: Future[T], timeout_s: float | None = None) -> T:
        """Do what is posted until a future is done.

        Args:
            future: it may be done by such work, or by another thread.
            timeout_s: seconds after which no further work is begun; None: any.
        Returns: the future's result.
        Raises: what the future or the work raised; TimeoutError.
        """
        if not future.done():
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            future.add_done_callback(lambda done: self._posted.put(None))
            while not future.done():
                left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    work = self._posted.get(timeout=left_s)
                except Empty:
                    raise TimeoutError from None
                if work is not None:
                    work()
        return future.result()

    def empty(self) -> None:
        """Do what is posted now, without waiting."""
        while not self._posted.empty():
            work = self._posted.get()
            if work is not None:
                work()
