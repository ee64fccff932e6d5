"""The event queue: one heap of dispatches without a reply, in simulated time, for every schedule.

Replies are taken in the order of (second, client, dispatch number), whichever work really ends first. A
reply's second is exact only when the work is done: then the upload's size and the samples drawn are known.
Until then the heap holds a lower bound. The server blocks only while the earliest event's second is still a
lower bound. So the order is a function of the recipe, and all other steps go on meanwhile.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import NamedTuple

from rayfed_kd.cluster.engine.calls import StepCall, StepResult
from rayfed_kd.cluster.engine.interface import Engine
from rayfed_kd.cluster.server.traffic import travelling
from rayfed_kd.errors import RunError
from rayfed_kd.protocol import Declaration
from rayfed_kd.timing import Clock

ROUNDING = 1e-9  # relative tolerance: an arrival and its lower bound are summed in different orders


@dataclass(frozen=True)
class Dispatch:
    """A step sent to a client, with all that is needed to send it again after a crash.

    Attributes:
        number: number of this dispatch in the run, from 1.
        at: simulated second at which it was sent.
        call: the step's call.
        bytes_down: bytes of the message, as the ledger counts them.
        elements: message part -> number of elements; a reply's vector of the same name has as many.
        least_samples: lower bound of the training samples that the step draws.
    """

    number: int
    at: float
    call: StepCall
    bytes_down: int
    elements: Mapping[str, int]
    least_samples: int

    @property
    def client(self) -> int:
        """Id of the client that it was sent to."""
        return self.call.facts.client


class _Event(NamedTuple):
    """An entry of the heap. A tuple, as heaps compare often; `number` is unique, so no future is compared."""

    at: float
    client: int
    number: int
    dispatch: Dispatch
    future: Future[StepResult]
    exact: bool


class EventQueue:
    """All dispatches without a reply, and the simulated time.

    Args:
        engine: runs the steps.
        clock: simulates how long steps take; None: real time counts.
        up: the method's declaration of reply parts; parts declared as `Simulated` take no upload time.
        now: second at which the queue starts: 0, or that of a checkpoint.

    Attributes:
        now: simulated seconds since the run's start.
        waited_s: real seconds that the server waited for steps.
    """

    def __init__(self, engine: Engine, clock: Clock | None, up: Declaration, now: float = 0.0) -> None:
        self._engine, self._clock, self._up, self.now = engine, clock, up, now
        self._events: list[_Event] = []
        # Under a measured clock a resumed run's seconds go on from the checkpoint's.
        self._origin = time.monotonic() - now
        self.waited_s = 0.0

    def __len__(self) -> int:
        return len(self._events)

    @property
    def simulated(self) -> bool:
        """Whether `now` is a meaningful time; under `clock: none` it is not."""
        return self._clock is None or self._clock.simulated

    @property
    def clients(self) -> set[int]:
        """Ids of the clients that are at work."""
        return {event.client for event in self._events}

    @property
    def under_way(self) -> Sequence[Dispatch]:
        """The dispatches without a reply, by number."""
        # A resumed run sends them again in this order; the heap's own order changes with each arrival.
        return sorted((event.dispatch for event in self._events), key=lambda dispatch: dispatch.number)

    def available(self, clients: Sequence[int]) -> Sequence[int]:
        """Those of `clients` that can be dispatched: they are not at work, and their devices are available.

        If no client is at work and none is available, simulated time advances until one is available.

        Args:
            clients: ids, ascending.
        Returns: ids, ascending; empty if none is available and others are still at work.
        """
        busy = self.clients
        free = [client for client in clients if client not in busy] if busy else clients
        if self._clock is None:
            return free
        reachable = self._clock.available(free, self.now)
        # Only with nobody at work: else a reply may come before anybody is available, and is taken first.
        if not reachable and not busy:
            self.now = self._clock.next_available(free, self.now)
            reachable = self._clock.available(free, self.now)
        return reachable

    def free_s(self, clients: Sequence[int]) -> float:
        """The second, after now, at which another of `clients` can be dispatched that is away now."""
        if self._clock is None:
            return math.inf
        away = {*clients} - self.clients - {*self._clock.available(clients, self.now)}
        at = self._clock.next_available(sorted(away), self.now) if away else math.inf
        return at if at > self.now else math.inf

    def start(self, *dispatches: Dispatch, summed_sizes: Sequence[int] = ()) -> None:
        """Submit one dispatch, or several as a group that trains as one batch.

        Args:
            dispatches: they go to one host.
            summed_sizes: if their host sums the replies, sizes of the groups that train as one batch, in
                order.
        """
        # Counted as waiting, because the local engine runs the steps inside `submit`.
        started = time.perf_counter()
        if self._clock is None:  # deadlines count from here, not from the last reply
            self.now = time.monotonic() - self._origin
        futures = self._engine.submit([dispatch.call for dispatch in dispatches], summed_sizes)
        self.waited_s += time.perf_counter() - started
        for entry, future in zip(dispatches, futures, strict=True):
            # Under a measured clock this second only orders replies that are done at the same look.
            at = entry.at
            if self._clock is not None:
                # Never before the dispatch, nor NaN, which `max` passes over: the arrival is refused then.
                at = max(at, self._clock.earliest(entry.client, at, entry.bytes_down, entry.least_samples))
            heapq.heappush(self._events, _Event(at, entry.client, entry.number, entry, future, exact=False))

    def next(self, until: float = math.inf) -> tuple[Dispatch, StepResult] | None:
        """The next reply; None if none arrives by second `until`. Simulated time advances to either.

        Args:
            until: simulated second, included; infinite: wait for the next reply.
        Raises: what the step raised; RunError if the clock's lower bound was later than the arrival.
        """
        if self._clock is None:
            return self._first_done(until)
        while self._events and self._events[0].at <= until:
            event = self._events[0]
            started = time.perf_counter()
            try:
                # Under the local engine and for exact events it is done, and nothing is waited for.
                result = event.future.result()
            finally:
                self.waited_s += time.perf_counter() - started
            at = event.at if event.exact else self._arrival_s(self._clock, event, result)
            if at == event.at:  # unchanged, so the event is still the earliest of the heap
                heapq.heappop(self._events)
                # By rounding, an arrival may lie a hair before its bound, and so before `now`.
                self.now = max(self.now, at)
                return event.dispatch, result
            # Now that its second is exact, another event may be the earliest.
            heapq.heapreplace(self._events, event._replace(at=at, exact=True))
        if until < math.inf:
            # Nothing arrives by `until`, so simulated time is there now.
            self.now = max(self.now, until)
        return None

    def _arrival_s(self, clock: Clock, event: _Event, result: StepResult) -> float:
        dispatch = event.dispatch
        samples, bytes_up = result.facts.samples, travelling(self._up, result.facts.sizes)
        at = clock.arrival(dispatch.client, dispatch.at, dispatch.bytes_down, samples, bytes_up)
        if not event.at - ROUNDING * max(1.0, event.at) <= at < math.inf:  # `not` also catches NaN
            raise RunError(
                f"clock: the reply of client {dispatch.client} arrives at {at} s, and `earliest` gave "
                f"{event.at} s as the least; expected a later arrival, at a finite second. The client drew "
                f"{samples} samples, of {dispatch.least_samples} at the least by the method's `least_samples`"
            )
        return at

    def give_up(self) -> int:
        """Discard all dispatches without a reply; gives how many there were.

        Raises: what a step raised that has failed by now, though nobody waits for its reply.
        """
        given_up = len(self._events)
        # Their clients are free at once: the engine drops calls whose future is done, and ignores the result
        # of a step that still runs.
        for event in self._events:
            if not event.future.cancel() and event.future.done():
                event.future.result()
        self._events.clear()
        return given_up

    def _first_done(self, until: float) -> tuple[Dispatch, StepResult] | None:
        """The reply that really arrives first, under `clock: real`."""
        started = time.perf_counter()
        # Under this clock simulated seconds are real ones, since the run's start.
        left = None if until == math.inf else max(0.0, until - (time.monotonic() - self._origin))
        done, _ = wait({event.future for event in self._events}, left, FIRST_COMPLETED)
        self.waited_s += time.perf_counter() - started
        self.now = time.monotonic() - self._origin
        if not done:
            return None
        # Several may be done by now, and which came first is not known: the lowest of the heap's order.
        event = min(event for event in self._events if event.future in done)
        self._events.remove(event)
        heapq.heapify(self._events)
        return event.dispatch, event.future.result()
