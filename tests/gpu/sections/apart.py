"""Work in processes of its own, a fresh one for each call, as a user's run has it."""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

T = TypeVar("T")


def fresh(function: Callable[..., T], *arguments: Any) -> T:
    """What the function gives in a new process."""
    with processes(1) as pool:
        return pool.submit(function, *arguments).result()


def each(function: Callable[..., T], calls: Sequence[tuple[Any, ...]], count: int) -> Iterator[T]:
    """What the function gives for each tuple of arguments, as they are done.

    A new process for each: after an error of a kernel, CUDA refuses everything else in the process.
    """
    with processes(count) as pool:
        for future in as_completed([pool.submit(function, *arguments) for arguments in calls]):
            yield future.result()


def processes(count: int) -> ProcessPoolExecutor:
    """So many processes at a time; each call has a new one."""
    return ProcessPoolExecutor(count, mp_context=mp.get_context("spawn"), max_tasks_per_child=1)
