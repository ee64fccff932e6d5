"""The cohort that a method's round works with: it sends messages, collects replies, counts bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from rayfed_kd.cluster.engine.calls import NO_STATE, Held, StepCall, StepFacts, StepResult
from rayfed_kd.cluster.server.event_queue import Dispatch
from rayfed_kd.cluster.server.questions import EngineQuestions
from rayfed_kd.cluster.server.replies import ReceivedParts, ReceivedReply
from rayfed_kd.cluster.server.run_state import RunState, jobs
from rayfed_kd.cluster.server.sender import Published, Sender
from rayfed_kd.cluster.server.traffic import Ledger, Traffic, travelling
from rayfed_kd.errors import RunError
from rayfed_kd.protocol import Answers, Later, Message, Replies, Step
from rayfed_kd.protocol.declaration import kinds
from rayfed_kd.protocol.message_codec import VECTORS, Direction
from rayfed_kd.protocol.messages import is_finite
from rayfed_kd.protocol.wire import PartSize
from rayfed_kd.timing import Progress
from rayfed_kd.timing.schedule import check_sample

MOST_BAD = 100  # replies in a row, beyond as many as clients are at work


class BadReplyError(RunError):
    """A reply that the server cannot use: it has NaN or infinite values, or a vector of a wrong size."""


class EngineCohort:
    """A round's cohort, sampled by the schedule and dispatched through the event queue.

    It counts the bytes of messages and replies, and keeps the clients' new states.

    Args:
        round_index: number of the update that this round makes, from 1.
        run: the run's state.

    Attributes:
        traffic: what the round's exchanges leave for the tables.
    """

    def __init__(self, round_index: int, run: RunState) -> None:
        self._round, self._run = round_index, run
        self._method, self._faults = run.setting.method, run.setting.recipe.faults
        self.traffic = Traffic(Ledger({"down": self._method.down, "up": self._method.up}))
        self._sender = Sender(round_index, run, self.traffic)
        self._schedule, self._queue, self._records = run.schedule, run.queue, run.records
        self._wires, self._everyone = run.setting.wires, range(run.setting.recipe.partition.clients)
        self._received: list[ReceivedParts] = []
        self._exchanges = self._asked = 0
        self._clients = self._drawn(self._progress(starting=True))
        # Plain numbers that features send beside a message's own, and beside a reply's.
        self._numbers = sum(feature.numbers for feature in run.features)

    @property
    def clients(self) -> Sequence[int]:
        """The cohort's ids, ascending."""
        return self._clients

    def broadcast(self, step: Step, message: Message) -> Replies:
        """Send one message, published once, to the whole cohort.

        If the schedule replaces clients that replied, the new clients get the same message: the server's
        state has not changed since.

        Args:
            step: the method's step.
            message: the message.
        Returns: the replies, in client order.
        Raises: RunError if no usable reply is left; BadReplyError under `faults.bad_replies: stop`.
        """
        published = self._sender.publish(message)
        self._dispatch(step, dict.fromkeys(self._clients, published))
        return self._collected(self._clients, lambda client: self._dispatch(step, {client: published}))

    def scatter(self, step: Step, messages: Mapping[int, Message], later: Later = None) -> Replies:
        """Send each of the named clients its own message; without any message there are no replies.

        Args:
            step: the method's step.
            messages: client id -> its message; the clients must be of the cohort.
            later: the message of a client that the schedule adds for one that replied; None: it adds nobody.
                With it there may be no client to begin with, as all are at work.
        Returns: the replies, in client order.
        Raises: RunError if a client is not in the cohort or no usable reply is left.
        """
        if not messages and later is None:
            return self._replies([])
        publish = self._sender.publish
        self._dispatch(step, {client: publish(messages[client]) for client in sorted(messages)})
        add = None if later is None else lambda client: self._dispatch(step, {client: publish(later(client))})
        return self._collected(sorted(messages), add)

    def questions(
        self, step: Step, message: Message, *, answer: str, question: str | None = None
    ) -> EngineQuestions:
        """Start `step` on the whole cohort; its answers are counted when the server asks for them.

        Answers take no simulated time, and the states after the step are discarded.

        Args:
            step: the step that computes a client's answers to all questions ahead.
            message: the message to every client.
            answer: the reply's part with the answers, one row for each id.
            question: the part that ids are counted as; None: ids need not travel.
        """
        if not isinstance(self._method.up.get(answer), Answers):
            raise RunError(
                f"the method asks its clients for {answer!r}; expected that part as Answers(KIND) in `up`"
            )
        published, self._asked = self._sender.publish(message), self._asked + 1
        started = {client: self._sender.observe(client, step, published) for client in self._clients}
        for call, _ in started.values():
            self._count(call, "down", published.sizes, len(message.metadata))
        return EngineQuestions(
            started,
            (answer, question),
            self.traffic,
            self._count,
            drop=self._faults.bad_replies == "drop",
            wires=(self._wires["up"], self._wires["down"]),
            features=self._run.features,
            number=self._asked,
        )

    def end_round(self) -> None:
        """Release the arrays that the round's replies hold in memory."""
        for parts in self._received:
            parts.end_round()

    def _progress(self, replies: int = 0, starting: bool = False, past_deadline: bool = False) -> Progress:
        return Progress(self._round, replies, len(self._queue), starting, past_deadline)

    def _drawn(self, progress: Progress) -> list[int]:
        """Sample the clients that the schedule wants now; each begins a participation.

        Raises: RunError if the schedule samples clients that are not available.
        """
        wanted = self._schedule.clients_to_ask(progress)
        free = self._queue.available(self._everyone) if wanted else []
        if not free:
            return []
        # The draw's number and the run's seed decide the sample; checkpoints keep it for a resumed run.
        self._run.counters.draws += 1
        drawn = list(self._schedule.sample(free, wanted, self._run.counters.draws))
        check_sample(drawn, free, len(free) if self._schedule.facts.join_probability else wanted)
        for client in drawn:
            self._records.put(client, self._records[client].begun())
        return drawn

    def _dispatch(self, step: Step, messages: Mapping[int, Published]) -> None:
        """Dispatch clients, in ascending order, at the current second."""
        run, local, dispatches = self._run, self._run.setting.recipe.local, []
        for client, message in messages.items():
            if client not in self._clients and not self._schedule.asynchronous:
                raise RunError(f"round {self._round}: client {client} is not in the cohort {self._clients}")
            run.counters.dispatches += 1
            call = self._sender.call(client, step, message, number=run.counters.dispatches)
            # At dispatch, not at the reply: an observation of a client at work draws from streams of its own.
            self._records.put(client, self._records[client].sent())
            self._count(call, "down", message.sizes, len(message.metadata) + self._numbers)
            dispatch = Dispatch(
                number=call.number,
                at=self._queue.now,
                call=call,
                bytes_down=travelling(self._method.down, message.sizes),
                elements={name: size.elements for name, size in message.sizes.items()},
                least_samples=self._method.least_samples(len(run.setting.partition.train[client]), local),
            )
            dispatches.append(dispatch)
        for places, summed_sizes in jobs([dispatch.call for dispatch in dispatches], run.setting):
            self._queue.start(*(dispatches[place] for place in places), summed_sizes=summed_sizes)

    def _collected(self, dispatched: Sequence[int], add: Callable[[int], object] | None) -> Replies:
        """Take arriving replies until the schedule says that the update is complete.

        Args:
            dispatched: the clients that were dispatched.
            add: dispatches one more client; None: the schedule cannot replace clients in this exchange.
        """
        schedule, queue = self._schedule, self._queue
        deadline = queue.now + schedule.deadline_s(self._round)
        replies: list[ReceivedReply] = []
        error: BadReplyError | None = None
        bad_in_a_row = 0
        past_deadline = False  # still in the deadline's own second
        while not schedule.is_complete(progress := self._progress(len(replies), past_deadline=past_deadline)):
            arrival = self._arrival(progress, add, deadline)
            # With no client at work, and nobody to ask, the update ends with the replies that it has.
            if arrival is None and not len(queue):
                break
            if arrival is None:  # the schedule is asked again
                past_deadline |= queue.now >= deadline
                continue
            try:
                reply = self._accepted(*arrival)
            except BadReplyError as bad:
                error, bad_in_a_row = bad, bad_in_a_row + 1
                self._leave_out(bad, bad_in_a_row)
                continue
            bad_in_a_row = 0
            if reply is None:
                self.traffic.dropped += 1
            else:
                replies.append(reply)
        # After the loop, not when the deadline passes: `min_fraction` may still be missing then.
        if schedule.drops_late:
            self.traffic.dropped += queue.give_up()
        if not replies:
            raise RunError(f"{error or 'all were too late'}; no reply of round {self._round} is left")
        self.traffic.staleness += [reply.staleness for reply in replies]
        used: Sequence[ReceivedReply] = replies
        for feature in self._run.features:
            used = feature.replies(used)
            # Those of attackers have parts of their own now.
            self._received += [reply.parts for reply in used]
        collected = self._replies(used)
        # A client without a usable reply takes no part in the round's later exchanges.
        silent = set(dispatched) - set(collected.clients)
        self._clients = sorted({*self._clients, *collected.clients} - silent)
        # The largest exchange: one before may be with newcomers alone; who stays silent is missing later.
        self.traffic.cohort = max(self.traffic.cohort, len(replies) + self.traffic.dropped)
        return collected

    def _arrival(
        self, progress: Progress, add: Callable[[int], object] | None, deadline: float
    ) -> tuple[Dispatch, StepResult] | None:
        """The next reply; None if none comes until the schedule is to be asked again."""
        queue = self._queue
        # Replies that arrive in the current second are taken before new clients are dispatched.
        if (arrival := queue.next(until=queue.now)) is not None:
            return arrival
        for client in self._drawn(progress) if add else ():
            add(client)  # type: ignore[misc]
        # Past the deadline the schedule was just asked and wants more: the next reply, whenever it comes.
        limit = math.inf if progress.past_deadline else deadline
        # Of clients that it wanted and did not get one may be available before.
        if add and self._schedule.clients_to_ask(self._progress(progress.replies)):
            limit = min(limit, queue.free_s(self._everyone))
        return queue.next(until=limit) if len(queue) else None

    def _leave_out(self, bad: BadReplyError, in_a_row: int) -> None:
        """Count a reply that cannot be used.

        Raises: it, under `faults.bad_replies: stop`; RunError if there is no end of them: within an update
            all clients get the same message, which may let none of them succeed.
        """
        if self._faults.bad_replies == "stop":
            raise bad
        if in_a_row > MOST_BAD + self._schedule.concurrency:
            raise RunError(f"{bad} So were {in_a_row - 1} replies before it")
        self.traffic.leave_out(str(bad))

    def _replies(self, replies: Sequence[ReceivedReply]) -> Replies:
        """The replies of this exchange, with the rule that says how they become the server's new vector."""
        exchange, self._exchanges = self._exchanges, self._exchanges + 1
        rules = (feature.rule(self._round, exchange) for feature in self._run.features)
        return Replies(replies, next(filter(None, rules), self._run.rule))

    def _accepted(self, dispatch: Dispatch, result: StepResult) -> ReceivedReply | None:
        """The reply, after its client's new state was kept; None, without that, if it is too stale."""
        call, facts = dispatch.call, result.facts
        # Counted before the checks: the bytes of a dropped reply crossed, too.
        self._count(call, "up", facts.sizes, len(facts.metadata) + self._numbers)
        for feature in self._run.features:
            feature.arrived(dispatch.client, facts)
        self._check(dispatch, facts)
        staleness = self._round - call.facts.round
        if self._schedule.is_too_late(staleness):
            return None
        # Only now: a reply that is not used needs no second copy.
        if self._faults.durable:
            result = self._run.engine.durable(result)
        record = self._records[dispatch.client]
        # `own`: the record outlives the round, and must not keep a whole group's states in the store.
        # A client without a state gets no reference, so that checkpoints fetch nothing.
        state = result.state.own() if facts.keeps_state else Held(NO_STATE)
        self._records.put(dispatch.client, record.replied(state, call.number))
        self.traffic.facts.append((dispatch.client, facts))
        # A client starts from the decoded message, which a lossy codec makes differ from the one sent.
        sent = ReceivedParts(call.message, list(dispatch.elements), self._wires["down"], keeps=False)
        reply = ReceivedReply(dispatch.client, result, self._wires["up"], sent)
        reply.origin, reply.staleness = str(call), staleness
        for feature in self._run.features:
            reply = feature.incoming(reply, result)
        self._received.append(reply.parts)
        return reply

    def _check(self, dispatch: Dispatch, facts: StepFacts) -> None:
        bad = [f"part {name}" for name in facts.non_finite]
        bad += [f"number {name}" for name, number in facts.metadata.items() if not is_finite(number)]
        if bad:
            raise BadReplyError(
                f"{dispatch.call}: reply {', '.join(bad)} has NaN or infinite values; expected finite ones. "
                "The usual cures: a lower local.optimizer.lr, and no mean over a class without samples."
            )
        if facts.refused:
            raise BadReplyError(f"{dispatch.call}: reply part {'; '.join(facts.refused)}")
        # A model's vector must be as long as the message's of the same name.
        kind_by_part = kinds(self._method.up)
        for name, size in facts.sizes.items():
            expected = dispatch.elements.get(name, size.elements)
            if kind_by_part.get(name) in VECTORS and size.elements != expected:
                raise BadReplyError(
                    f"{dispatch.call}: reply part {name} has {size.elements} elements; expected {expected}"
                )

    def _count(
        self, call: StepCall, direction: Direction, sizes: Mapping[str, PartSize], metadata: int
    ) -> None:
        try:
            self.traffic.ledger.count(call.facts.client, direction, sizes, metadata)
        except RunError as error:
            raise RunError(f"{call}: {error}") from None
