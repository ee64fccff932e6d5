"""The jobs that wait for a host, the longest first, and which of them goes where next.

How long a step takes is learned from steps that ended, by step and architecture. It decides what starts first
and what crosses together, never a result.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence

from rayfed_kd.cluster.engine.calls import StepCall
from rayfed_kd.cluster.ray_backend.dispatch.client_hosts import ClientHosts
from rayfed_kd.cluster.ray_backend.dispatch.jobs import Job

# Seconds of work that short steps are combined to, in one call to a host: a call itself costs 1 to 4 ms.
LEAST_S, MOST_S = 0.005, 0.05


class JobQueue:
    """Waiting jobs. The longest starts first: a long one that starts last ends last.

    Args:
        hosts: which host a job may run on, and which has room.
        sizes: [K] training samples of each client.
        kinds: [K] each client's architecture; empty: all have the same.
        drop: called with jobs that nobody waits for any more when their turn comes.

    Attributes:
        jobs: those that wait, in order.
    """

    def __init__(
        self, hosts: ClientHosts, sizes: Sequence[int], kinds: Sequence[str], drop: Callable[[Job], object]
    ) -> None:
        self._hosts, self._sizes, self._kinds, self._drop = hosts, sizes, kinds, drop
        self._rates = dict[tuple[str, str], float]()  # step and architecture -> seconds per sample
        self.jobs: list[Job] = []

    def add(self, job: Job) -> None:
        """Put a job at its place."""
        bisect.insort(self.jobs, job, key=self._order)

    def pop_hopeless(self) -> list[tuple[Job, Exception]]:
        """Take out the jobs that no host can ever run, each with the reason."""
        verdicts = [(job, self._hosts.hopeless(job)) for job in self.jobs] if self._hosts.gone else []
        ended = [(job, error) for job, error in verdicts if error is not None]
        for job, _ in ended:
            self.jobs.remove(job)
        return ended

    def learn(self, call: StepCall, seconds: float) -> None:
        """Note how long a step took that had its host for itself."""
        kind = self._kind(call)
        new = kind not in self._rates
        self._rates[kind] = seconds / max(self._sizes[call.facts.client], 1)
        if new:
            self.jobs.sort(key=self._order)

    def expected_s(self, call: StepCall) -> float:
        """Expected seconds of a step; infinite if none of that name and architecture has ended yet."""
        # An empty client's step is taken for that of one sample.
        return self._rates.get(self._kind(call), math.inf) * max(self._sizes[call.facts.client], 1)

    def next(self) -> tuple[int, list[Job]] | None:
        """Take out what starts now: a job, or a job and short steps that cross with it.

        Returns: a host and its jobs; None: nothing can start.
        """
        while (pick := self._startable()) is not None:
            place, host = pick
            job = self.jobs.pop(place)
            if not job.done:
                return host, [job, *self._short_steps(job)]
            self._drop(job)
        return None

    def _kind(self, call: StepCall) -> tuple[str, str]:
        return call.step, self._kinds[call.facts.client] if self._kinds else ""

    def _order(self, job: Job) -> tuple[float, int, int]:
        """Evaluations and steps of unknown length first, by samples; the others by expected seconds."""
        known = isinstance(job.calls[0], StepCall)
        return -sum(map(self.expected_s, job.calls)) if known else -math.inf, -job.samples, job.number

    def _startable(self) -> tuple[int, int] | None:
        """The place in the queue of the first job that can start, and its host; None: none can."""
        hosts = self._hosts
        # A second call spares a host the wait for its next one. With few jobs it would keep them from hosts
        # that become free earlier, as a call that was sent stays at its host.
        depth = 2 if len(self.jobs) > len(hosts) else 1
        for place, job in enumerate(self.jobs):
            host = hosts.free(job, depth)
            if host is not None:
                return place, host
            if not hosts.pinned:  # all jobs find the hosts equally full
                break
        return None

    def _short_steps(self, first: Job) -> list[Job]:
        """Take out short steps to send in one call with a first one, as a call to Ray costs more than each.

        None with pinned clients, or if the first one's host was lost before: it may be the cause.
        """
        hosts = self._hosts
        if hosts.pinned or first.step is None or first.lost:
            return []
        # A host takes at most half of its share of the queue, so that all hosts end at about the same time.
        share = math.ceil(len(self.jobs) / (2 * len(hosts)))
        chosen, work_s = list[Job](), self.expected_s(first.step)
        for job in self.jobs:
            if work_s >= MOST_S or (len(chosen) >= share and work_s >= LEAST_S):
                break
            if job.step is None or job.lost or job.done:
                continue
            work_s += self.expected_s(job.step)
            chosen.append(job)
        if chosen:
            taken = {job.number for job in chosen}
            self.jobs = [job for job in self.jobs if job.number not in taken]
        return chosen
