"""How long a call to a host may take before its process counts as hung, and is ended.

Under `faults.step_timeout_s: auto` a call may take MULTIPLE times as long as the longest call of its kind
that has ended (the same step, alone or in a group), in proportion to its samples if these are more, and
never less than LEAST_S. Before the first of its kind has ended nothing is known, and it may take FIRST_S.

A host runs one call after another, so a call's time runs from the end of the call before it. That way a host
can have its next call before the last one ends, with a limit as without one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rayfed_kd.cluster.engine.calls import EvaluationCall, PersonalCall
from rayfed_kd.cluster.ray_backend.dispatch.jobs import Job

MULTIPLE, LEAST_S, FIRST_S = 20.0, 600.0, 6 * 3600.0
LOOK_S = 15.0  # most seconds between two looks at the calls under way
AUTO = "(faults.step_timeout_s = auto; null: no limit)"
Kind = tuple[str, bool]  # a step's name, or what is evaluated; and whether it is a group's


@dataclass(eq=False)
class Turn:
    """A call that a host has.

    Attributes:
        jobs: what was sent.
        task: waits for the answer.
        since: second of the event loop's clock at which it was sent, or the call before it ended.
        limit: the limit that it has exceeded, in words; empty if it has not.
    """

    jobs: Sequence[Job]
    task: asyncio.Task[None] | None
    since: float
    limit: str = ""


class Patience:
    """Looks at the calls that hosts work on, and ends the wait for those that take too long.

    It looks while there are calls, and cancels the task that waits for a call over its limit.

    Args:
        limit: `faults.step_timeout_s`.
        loop: the engine's event loop; all methods are called in it.
        hosts: number of hosts.
    """

    def __init__(
        self, limit: float | Literal["auto"] | None, loop: asyncio.AbstractEventLoop, hosts: int
    ) -> None:
        self._limit, self._loop = limit, loop
        self._turns: list[deque[Turn]] = [deque() for _ in range(hosts)]
        self._longest: dict[Kind, tuple[float, float]] = {}  # seconds, and samples of that call
        # A given limit is noticed when it is exceeded by about a tenth, or by LOOK_S seconds.
        self._look_s = LOOK_S if limit is None or isinstance(limit, str) else min(LOOK_S, limit / 10)
        self._looking = False
        self._looked = 0.0

    def begin(self, host: int, jobs: Sequence[Job]) -> Turn:
        """Note that the current task sends a call to a host.

        Args:
            host: the host's number.
            jobs: what the call sends.
        Returns: the call's turn, for `end`; its `limit` is set before the task is cancelled.
        """
        now = self._loop.time()
        turn = Turn(jobs, asyncio.current_task(self._loop), now)
        self._turns[host].append(turn)
        if not self._looking and self._limit is not None:
            self._looking, self._looked = True, now
            self._loop.call_later(self._look_s, self._look)
        return turn

    def end(self, host: int, turn: Turn, *, answered: bool) -> None:
        """Note that a call is over; the next one at its host has its turn.

        Args:
            host: the host's number.
            turn: of the call.
            answered: whether the host did the work; then it counts for the limits of others.
        """
        now, turns = self._loop.time(), self._turns[host]
        first = turns[0] is turn
        turns.remove(turn)
        # Only the first call of a host is at work, so the next one's time begins here.
        if first and turns:
            turns[0].since = now
        # Several short steps in one call are as long as the longest of them at least.
        if answered and first and len(turn.jobs) == 1:
            kind, took_s = _kind(turn.jobs[0]), now - turn.since
            if took_s > self._longest.get(kind, (0.0, 0.0))[0]:
                self._longest[kind] = took_s, _samples(turn.jobs)

    def limit_s(self, jobs: Sequence[Job]) -> tuple[float, str] | None:
        """A call's limit; None: it has none.

        Args:
            jobs: what the call sends.
        Returns: seconds, and what is told if the call exceeds them.
        """
        if self._limit is None:
            return None
        if not isinstance(self._limit, str):
            # A group may take the sum of its clients' limits; several short steps only that of one.
            clients = len(jobs[0].calls)
            each = f" for each of {clients} clients" if clients > 1 else ""
            return self._limit * clients, f"took longer than faults.step_timeout_s = {self._limit:g}{each}"
        # A step that was ended before gets twice the time: it may be as long as that.
        kind, tries = _kind(jobs[0]), 2.0 ** jobs[0].lost
        if kind not in self._longest:
            limit_s = tries * FIRST_S
            return limit_s, f"took longer than {limit_s:.0f} s, and no {kind[0]} has ended so far {AUTO}"
        longest_s, samples = self._longest[kind]
        limit_s = tries * max(LEAST_S, MULTIPLE * longest_s * max(1.0, _samples(jobs) / max(samples, 1.0)))
        longest = f"the longest {kind[0]} so far {longest_s:.3g} s"
        return limit_s, f"took longer than {limit_s:.0f} s, and {longest} {AUTO}"

    def _look(self) -> None:
        now = self._loop.time()
        # Seconds in which this process itself stood still, as on a suspended machine, count for no call. A
        # look may be late by one interval without being taken for a standstill.
        paused_s = max(0.0, now - self._looked - 2 * self._look_s)
        self._looked, self._looking = now, any(self._turns)
        for turns in self._turns:
            if not turns:
                continue
            # The calls behind it wait at the host, and their time has not begun.
            turn = turns[0]
            turn.since = min(now, turn.since + paused_s)
            limit = self.limit_s(turn.jobs)
            if limit is not None and now - turn.since > limit[0] and not turn.limit:
                turn.limit = limit[1]
                # `RayEngine._run` takes this for a lost host: a set `limit` tells it from the loop's end.
                if turn.task is not None:
                    turn.task.cancel()
        if self._looking:
            self._loop.call_later(self._look_s, self._look)


def _kind(job: Job) -> Kind:
    call = job.calls[0]
    if isinstance(call, EvaluationCall):
        return "evaluation of a shared model", False
    if isinstance(call, PersonalCall):
        return "evaluation of a client's own model", False
    return call.step, len(job.calls) > 1


def _samples(jobs: Sequence[Job]) -> float:
    return float(sum(job.samples for job in jobs))
