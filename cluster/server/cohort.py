"""The cohort that a round sees: messages out, replies in, every byte counted, states kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cluster.engine.calls import StepCall, StepFacts, StepResult
from cluster.engine.interface import Engine
from cluster.server.client_records import Records
from cluster.server.event_queue import Flights, Landing, Order
from cluster.server.grouping import Grouping
from cluster.server.ledger import travelling
from cluster.server.questions import EngineQuestions
from cluster.server.replies import _reply
from cluster.server.schedules import check_sample
from cluster.server.traffic import Counters, Traffic
from rayfed_kd.errors import RunError
from rayfed_kd.protocol import (
    DispatchFacts,
    Handle,
    Message,
    Progress,
    Replies,
    Reply,
    Schedule,
    Step,
    UpdateRule,
    to_array,
)
from rayfed_kd.setting.setting import Setting

if TYPE_CHECKING:
    from cluster.server.poisoning import Poisoning


VECTORS = ("weights", "generator", "discriminator")


class BadReplyError(RunError):
    """A reply that no server can use: NaN, infinite, or of a wrong size."""


@dataclass(frozen=True)
class Ground:
    """What all rounds of a run stand on.

    Attributes:
        setting: method, data, partition.
        engine: runs the steps.
        schedule: whom to ask, and when there is enough.
        rule: how replies become the server's new vector.
        flights: what is under way, and the time.
        records: what is known of every client.
        counters: draws and dispatches so far.
        grouping: which steps run together.
        poisoning: replaces attackers' replies; None: all are honest.
    """

    setting: Setting
    engine: Engine
    schedule: Schedule
    rule: UpdateRule
    flights: Flights
    records: Records
    counters: Counters
    grouping: Grouping
    poisoning: Poisoning | None = None


@dataclass(frozen=True)
class _Sent:
    """A published message."""

    message: Message
    handle: Handle
    shapes: Mapping[str, tuple[int, int]]
    bytes_down: int


class EngineCohort:
    """A round's cohort: drawn by the schedule, asked through the heap of flights.

    Args:
        round_index: from 1; the update that this round makes.
        ground: the run's.
    """

    def __init__(self, round_index: int, ground: Ground) -> None:
        self._round, self._ground = round_index, ground
        self._method, self._faults = ground.setting.method, ground.setting.recipe.faults
        self._schedule, self._flights, self._records = ground.schedule, ground.flights, ground.records
        self._landed: dict[int, Landing] = {}
        self.traffic = Traffic()
        self._clients = self._drawn(self._progress(starting=True))

    @property
    def clients(self) -> Sequence[int]:
        """The cohort's ids, ascending; after an exchange, those that answered."""
        return self._clients

    def broadcast(self, step: Step, message: Message) -> Replies:
        """One message to all, published once; the replies in client order.

        Where the schedule replaces clients that answered, the new ones get the same message: the server's
        state has not changed since.
        """
        sent = self._publish(message)
        self._dispatch(step, dict.fromkeys(self._clients, sent))
        return self._exchange(self._clients, lambda client: self._dispatch(step, {client: sent}))

    def scatter(self, step: Step, messages: Mapping[int, Message]) -> Replies:
        """One message each; the clients named, none if there is none."""
        if not messages:
            return Replies([], self._ground.rule)
        self._dispatch(step, {client: self._publish(messages[client]) for client in sorted(messages)})
        return self._exchange(sorted(messages), None)

    def submit(self, client: int, step: Step, message: Message) -> Callable[[], Reply]:
        """Starts one client's step; call the result to wait for its reply."""
        if self._ground.poisoning is not None:
            raise RunError(
                "attack: a reply that comes alone cannot be poisoned; expected broadcast or scatter"
            )
        (order,) = self._dispatch(step, {client: self._publish(message)})

        def wait() -> Reply:
            while order.number not in self._landed:
                landing = self._flights.next()
                assert landing is not None
                self._landed[landing.order.number] = landing
            reply = self._reply(self._landed.pop(order.number))
            assert reply is not None  # only schedules without rounds have replies that are too old
            return reply

        return wait

    def questions(
        self, step: Step, message: Message, *, answer: str, question: str | None = None
    ) -> EngineQuestions:
        """Starts `step` everywhere; what it computes ahead is counted when it is asked for.

        Answers take no simulated time.
        """
        sent = self._publish(message)
        started = Onlookers(self._clients, self._round, self._ground).start(step, message, sent.handle)
        for call, _ in started.values():
            self._count(call, "down", sent.shapes, len(message.metadata))
        return EngineQuestions(
            started,
            (answer, question),
            self.traffic,
            self._count,
            drop=self._faults.bad_replies == "drop",
            poisoning=self._ground.poisoning,
        )

    def _progress(self, replies: int = 0, starting: bool = False, past_deadline: bool = False) -> Progress:
        return Progress(self._round, replies, len(self._flights), starting, past_deadline)

    def _drawn(self, progress: Progress) -> list[int]:
        """Clients that the schedule wants asked now; each begins a participation.

        Raises: RunError if the schedule samples others than those that are available.
        """
        wanted = self._schedule.clients_to_ask(progress)
        if not wanted:
            return []
        free = self._flights.available(range(self._ground.setting.recipe.partition.clients))
        if not free:
            return []
        self._ground.counters.draws += 1
        drawn = list(self._schedule.sample(free, wanted, self._ground.counters.draws))
        check_sample(drawn, free, wanted)
        for client in drawn:
            record = self._records[client]
            begun = replace(record, participations=record.participations + 1, exchange=0)
            self._records.put(client, begun)
        return drawn

    def _exchange(self, asked: Sequence[int], ask: Callable[[int], Any] | None) -> Replies:
        """Takes what lands until the schedule has enough.

        Args:
            asked: who was.
            ask: asks one more; None: nobody else can be.
        """
        schedule, flights = self._schedule, self._flights
        deadline = flights.now + schedule.deadline_s(self._round)
        replies: list[Reply] = []
        error: BadReplyError | None = None
        # Without anybody at work nothing can arrive: the update ends with the replies that it has.
        while len(flights):
            progress = self._progress(len(replies), past_deadline=flights.now >= deadline)
            if schedule.is_complete(progress):
                break
            # What lands in this very second comes before anybody new is asked.
            landing = flights.next(until=flights.now)
            if landing is None:
                for client in self._drawn(progress) if ask else ():
                    ask(client)  # type: ignore[misc]
                landing = flights.next(until=deadline if flights.now < deadline else math.inf)
            if landing is None:
                continue
            try:
                reply = self._reply(landing)
            except BadReplyError as bad:
                if self._faults.bad_replies == "stop":
                    raise
                self.traffic.dropped += 1
                error = bad
                continue
            if reply is None:
                self.traffic.dropped += 1
            else:
                replies.append(reply)
        if schedule.drops_late:
            self.traffic.dropped += flights.give_up()
        if not replies:
            raise RunError(f"{error or 'All were too late.'} No reply of round {self._round} is left.")
        self.traffic.staleness += [reply.staleness for reply in replies]
        if self._ground.poisoning is not None:
            replies = self._ground.poisoning.replies(replies)
        found = Replies(replies, self._ground.rule)
        silent = set(asked) - set(found.clients)
        self._clients = sorted({*self._clients, *found.clients} - silent)
        self.traffic.cohort = self.traffic.cohort or len(replies) + self.traffic.dropped
        return found

    def _publish(self, message: Message) -> _Sent:
        started = time.perf_counter()
        handle = self._ground.engine.publish({name: to_array(part) for name, part in message.parts.items()})
        self.traffic.dispatch_s += time.perf_counter() - started
        shapes = {name: (part.numel(), part.element_size()) for name, part in message.parts.items()}
        return _Sent(message, handle, shapes, travelling(self._method.down, shapes))

    def _dispatch(self, step: Step, sent: Mapping[int, _Sent]) -> list[Order]:
        """Asks clients, ascending, at once."""
        orders = [self._order(client, step, message) for client, message in sent.items()]
        for places in self._ground.grouping.groups([order.call for order in orders]):
            self._flights.start(*(orders[place] for place in places))
        return orders

    def _order(self, client: int, step: Step, sent: _Sent) -> Order:
        if client not in self._clients and not self._schedule.asynchronous:
            raise RunError(f"round {self._round}: client {client} is not in the cohort {self._clients}")
        record, setting = self._records[client], self._ground.setting
        self._ground.counters.dispatches += 1
        call = StepCall(
            step=step.__name__,
            facts=DispatchFacts(client, self._round, record.participations, record.exchange),
            message=sent.handle,
            metadata=sent.message.metadata,
            state=record.state,
            state_version=record.version,
            number=self._ground.counters.dispatches,
        )
        self._records.put(client, replace(record, exchange=record.exchange + 1))
        self._count(call, "down", sent.shapes, len(sent.message.metadata))
        samples = len(setting.partition.train[client])
        return Order(
            number=call.number,
            at=self._flights.now,
            call=call,
            bytes_down=sent.bytes_down,
            sizes={name: elements for name, (elements, _) in sent.shapes.items()},
            least_samples=self._method.least_samples(samples, setting.recipe.local),
        )

    def _reply(self, landing: Landing) -> Reply | None:
        """What landed, and its client's state kept; None, and the state as it was, if it is too old."""
        order, result = landing.order, landing.result
        call, facts = order.call, result.facts
        self._count(call, "up", facts.shapes, len(facts.metadata))
        self._check(order, facts)
        staleness = self._round - call.facts.round
        if self._schedule.is_too_late(staleness):
            return None
        if self._faults.durable:
            result = self._ground.engine.kept(result)
        record = self._records[order.client]
        self._records.put(order.client, replace(record, state=result.state.own(), version=call.number))
        self.traffic.facts.append((order.client, facts))
        reply = _reply(order.client, result)
        reply.sent, reply.staleness = call.message, staleness
        return reply

    def _check(self, order: Order, facts: StepFacts) -> None:
        if facts.non_finite:
            bad = ", ".join(facts.non_finite)
            raise BadReplyError(
                f"{order.call}: reply part {bad} has NaN or infinite values; expected finite ones. "
                f"A lower local.optimizer.lr is the usual cure."
            )
        for name, (elements, _) in facts.shapes.items():
            expected = order.sizes.get(name, elements)
            if self._method.up.get(name) in VECTORS and elements != expected:
                raise BadReplyError(
                    f"{order.call}: reply part {name} has {elements} elements; expected {expected}"
                )

    def _count(
        self, call: StepCall, direction: Any, shapes: Mapping[str, tuple[int, int]], metadata: int
    ) -> None:
        declared = self._method.down if direction == "down" else self._method.up
        try:
            self.traffic.ledger.count(call.facts.client, direction, declared, shapes, metadata)
        except RunError as error:
            raise RunError(f"{call}: {error}") from None


class Onlookers:
    """A look at clients for people: states after it are thrown away, nothing is counted, no time goes by.

    Args:
        clients: ids, ascending.
        round_index: the round that was.
        ground: the run's.
    """

    def __init__(self, clients: Sequence[int], round_index: int, ground: Ground) -> None:
        self.clients, self._round, self._ground = list(clients), round_index, ground

    def broadcast(self, step: Step, message: Message) -> Replies:
        """One message to all, published once."""
        started = self.start(step, message, self._publish(message))
        return Replies([_reply(client, future.result()) for client, (_, future) in started.items()])

    def scatter(self, step: Step, messages: Mapping[int, Message]) -> Replies:
        """One message each."""
        started = [self.submit(client, step, messages[client]) for client in sorted(messages)]
        return Replies([wait() for wait in started])

    def submit(self, client: int, step: Step, message: Message) -> Callable[[], Reply]:
        """Starts one client's step."""
        _, future = self._ask(client, step, message, self._publish(message))
        return lambda: _reply(client, future.result())

    def questions(
        self, step: Step, message: Message, *, answer: str, question: str | None = None
    ) -> EngineQuestions:
        """Starts `step` everywhere."""
        started = self.start(step, message, self._publish(message))
        return EngineQuestions(started, (answer, question), Traffic(), lambda *counted: None, drop=False)

    def start(
        self, step: Step, message: Message, handle: Handle
    ) -> Mapping[int, tuple[StepCall, Future[StepResult]]]:
        """One published message to all, and the results to come."""
        return {client: self._ask(client, step, message, handle) for client in self.clients}

    def _publish(self, message: Message) -> Handle:
        return self._ground.engine.publish({name: to_array(part) for name, part in message.parts.items()})

    def _ask(
        self, client: int, step: Step, message: Message, handle: Handle
    ) -> tuple[StepCall, Future[StepResult]]:
        record = self._ground.records[client]
        call = StepCall(
            step=step.__name__,
            facts=DispatchFacts(client, self._round, record.participations, record.exchange),
            message=handle,
            metadata=message.metadata,
            state=record.state,
            state_version=record.version,
            observing=True,
        )
        return call, self._ground.engine.submit(call)
