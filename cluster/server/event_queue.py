"""Dispatches under way: one heap of events in simulated time, for every schedule.

A reply is taken in the order of (second, client, number of dispatch), whichever work really ends first. Its
second is exact only when the work is done (the upload's size, the samples drawn); until then the heap holds
the second before which it cannot come. The head is waited for only if it is not exact, so the order is a
function of the recipe, and everything behind the head goes on meanwhile.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass
from typing import NamedTuple

from cluster.engine.calls import StepCall, StepResult
from cluster.engine.interface import Engine, Pending, submit_group
from cluster.server.ledger import travelling
from rayfed_kd.errors import RunError
from rayfed_kd.protocol import Clock, Declaration

ROUNDING = 1e-9  # of a second's value: an arrival and its lower bound are added up in different orders


@dataclass(frozen=True)
class Order:
    """What a client was asked, and all that is needed to ask it again after a crash.

    Attributes:
        number: which dispatch of the run this is, from 1.
        at: when, simulated seconds.
        call: the step.
        bytes_down: of the message, as the ledger counts.
        sizes: elements of the message's parts; an answer's vector of the same name has as many.
        least_samples: training samples that it draws at least.
    """

    number: int
    at: float
    call: StepCall
    bytes_down: int
    sizes: Mapping[str, int]
    least_samples: int

    @property
    def client(self) -> int:
        """Who was asked."""
        return self.call.facts.client


@dataclass(frozen=True)
class Landing:
    """A reply that is there.

    Attributes:
        order: what it answers.
        result: what came.
    """

    order: Order
    result: StepResult


class _Event(NamedTuple):
    """A tuple: a heap compares much. No two are alike in the first three, so the rest is never compared."""

    at: float
    client: int
    number: int
    order: Order
    coming: Pending
    exact: bool


class Flights:
    """All dispatches under way, and the simulated time.

    Args:
        engine: runs the steps.
        clock: how long they take; None: as long as they really take, here and now.
        up: the method's parts, to know which of a reply's travel.
        now: seconds at which it starts.

    Attributes:
        now: simulated seconds since the run's start.
        waited_s: real seconds spent on waiting for steps.
    """

    def __init__(self, engine: Engine, clock: Clock | None, up: Declaration, now: float = 0.0) -> None:
        self._engine, self._clock, self._up, self.now = engine, clock, up, now
        self._events: list[_Event] = []
        self._origin = time.monotonic() - now
        self.waited_s = 0.0

    def __len__(self) -> int:
        return len(self._events)

    @property
    def simulated(self) -> bool:
        """Whether seconds mean anything."""
        return self._clock is None or self._clock.simulated

    @property
    def clients(self) -> set[int]:
        """Who is at work."""
        return {event.client for event in self._events}

    @property
    def orders(self) -> Sequence[Order]:
        """What is under way, in the order of dispatch."""
        return sorted((event.order for event in self._events), key=lambda order: order.number)

    def available(self, clients: Sequence[int]) -> Sequence[int]:
        """Those of `clients`, ascending, that can be asked: not at work, and their devices are there.

        If nobody is at work and nobody there, time goes on until somebody is.
        """
        busy = self.clients
        free = [client for client in clients if client not in busy] if busy else clients
        if self._clock is None:
            return free
        there = self._clock.available(free, self.now)
        if not there and not busy:
            self.now = self._clock.next_available(free, self.now)
            there = self._clock.available(free, self.now)
        return there

    def start(self, *orders: Order) -> None:
        """Sends an order out, or several as a group."""
        started = time.perf_counter()
        pending = submit_group(self._engine, [order.call for order in orders])
        self.waited_s += time.perf_counter() - started
        for order, coming in zip(orders, pending, strict=True):
            at = order.at
            if self._clock is not None:
                at = self._clock.earliest(order.client, order.at, order.bytes_down, order.least_samples)
            event = _Event(at, order.client, order.number, order, coming, exact=False)
            heapq.heappush(self._events, event)

    def next(self, until: float = math.inf) -> Landing | None:
        """The next reply, or None if there is none before second `until`; time goes on to either.

        Raises: what the step raised.
        """
        if self._clock is None:
            return self._first_done(until)
        while self._events and self._events[0].at <= until:
            event = self._events[0]
            result = self._waited(event.coming)
            at = event.at if event.exact else self._landing(self._clock, event, result)
            if at == event.at:  # then it is still the first
                heapq.heappop(self._events)
                self.now = max(self.now, at)
                return Landing(event.order, result)
            heapq.heapreplace(self._events, event._replace(at=at, exact=True))
        if until < math.inf:
            self.now = max(self.now, until)
        return None

    def _landing(self, clock: Clock, event: _Event, result: StepResult) -> float:
        order = event.order
        samples = max(result.facts.samples, order.least_samples)
        bytes_up = travelling(self._up, result.facts.shapes)
        at = clock.arrival(order.client, order.at, order.bytes_down, samples, bytes_up)
        if not at >= event.at - ROUNDING * max(1.0, event.at):  # also where it is no number
            raise RunError(
                f"clock: the reply of client {order.client} arrives at {at} s, and `earliest` gave "
                f"{event.at} s as the least; expected a later arrival"
            )
        return at

    def give_up(self) -> int:
        """Forgets what is under way; gives how many dispatches that were."""
        given_up = len(self._events)
        for event in self._events:
            event.coming.future.cancel()
        self._events.clear()
        return given_up

    def _waited(self, coming: Pending) -> StepResult:
        started = time.perf_counter()
        try:
            return coming.result()
        finally:
            self.waited_s += time.perf_counter() - started

    def _first_done(self, until: float) -> Landing | None:
        started = time.perf_counter()
        left = None if until == math.inf else max(0.0, until - (time.monotonic() - self._origin))
        done, _ = wait({event.coming.future for event in self._events}, left, FIRST_COMPLETED)
        self.waited_s += time.perf_counter() - started
        self.now = time.monotonic() - self._origin
        if not done:
            return None
        event = min(event for event in self._events if event.coming.future in done)
        self._events.remove(event)
        heapq.heapify(self._events)
        return Landing(event.order, event.coming.result())
