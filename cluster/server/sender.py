"""What goes out to clients: published messages, and the calls of their steps.

Beside a round's cohort there are clients that run steps without consequences: for `Method.shown`, and for
questions of the server.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from rayfed_kd.cluster.engine.calls import StepCall, StepResult
from rayfed_kd.cluster.server.questions import EngineQuestions
from rayfed_kd.cluster.server.replies import ReceivedReply
from rayfed_kd.cluster.server.run_state import RunState
from rayfed_kd.cluster.server.traffic import Traffic
from rayfed_kd.errors import RunError, kind_of
from rayfed_kd.protocol import DispatchFacts, Handle, Later, Message, Number, Replies, Step, to_array
from rayfed_kd.protocol.crossing import check_package
from rayfed_kd.protocol.wire import PartSize, Sending


class Published(NamedTuple):
    """A message that every host can read: its parts by reference, its metadata, and the parts' sizes."""

    handle: Handle
    metadata: Mapping[str, Number]
    sizes: Mapping[str, PartSize]


class Sender:
    """Publishes the messages of a round, and makes calls of its steps.

    Args:
        round_index: the round, from 1.
        run: the run's state.
        traffic: gets what codecs count and how long publishing takes.
    """

    def __init__(self, round_index: int, run: RunState, traffic: Traffic) -> None:
        self._round, self._run, self._traffic = round_index, run, traffic
        self._published = 0

    def publish(self, message: Message) -> Published:
        """Encode a message's parts, and publish them to all hosts.

        Raises: RunError if it is no message, or a part cannot be sent.
        """
        started = time.perf_counter()
        self._published += 1
        where = f"round {self._round}, message {self._published}"
        if not isinstance(message, Message):
            raise RunError(f"{where}: the method sends {kind_of(message)}; expected a Message")
        try:
            check_package(message, self._run.setting.method.down)
        except RunError as error:
            raise RunError(f"{where}: {error}") from None
        parts = {name: to_array(part) for name, part in message.parts.items()}
        sending = Sending(("message", self._round, self._published))
        sent = self._run.setting.wires["down"].encoded(parts, sending)
        if sent.refused:
            raise RunError(f"{where}: part {'; '.join(sent.refused)}")
        # By other names than what clients' replies log, with which it has no mean in common.
        for name, number in sent.logged.items():
            total, count = self._traffic.logged.get(f"{name}_down", (0.0, 0))
            self._traffic.logged[f"{name}_down"] = total + number, count + 1
        handle = self._run.engine.publish(sent.wire)
        self._traffic.dispatch_s += time.perf_counter() - started
        return Published(handle, message.metadata, sent.sizes)

    def call(
        self, client: int, step: Step, message: Published, *, number: int = 0, observing: bool = False
    ) -> StepCall:
        """A client's step, from the state that its record has now.

        Args:
            client: its id.
            step: a bound method of the method.
            message: what it gets.
            number: of this dispatch in the run, from 1; an observation's is not used.
            observing: whether the state after it is discarded.
        Raises: RunError if `step` is none.
        """
        record, name = self._run.records[client], getattr(step, "__name__", kind_of(step))
        if not callable(getattr(self._run.setting.method, name, None)):
            raise RunError(f"round {self._round}: {name!r} is no step; expected a bound method of the method")
        call = StepCall(
            step=name,
            facts=DispatchFacts(client, self._round, record.participations, record.exchange),
            message=message.handle,
            metadata=message.metadata,
            state=record.state,
            state_version=record.version,
            number=number,
            observing=observing,
        )
        for feature in self._run.features:
            call = feature.outgoing(call)
        return call

    def observe(self, client: int, step: Step, message: Published) -> tuple[StepCall, Future[StepResult]]:
        """Start a client's step whose state is discarded; its call, and the future of its result."""
        call = self.call(client, step, message, observing=True)
        (future,) = self._run.engine.submit([call])
        return call, future


class ObservedClients:
    """Clients whose steps only produce something to show, as pictures for `Method.shown`.

    The states after these steps are discarded, no bytes are counted, and no simulated time passes.

    Args:
        clients: ids, ascending; they are an attribute, too.
        round_index: the round that has just ended.
        run: the run's state.
    """

    def __init__(self, clients: Sequence[int], round_index: int, run: RunState) -> None:
        self.clients: Sequence[int] = list(clients)
        # A cohort's traffic goes into the tables. That of observations is never read.
        self._traffic = Traffic()
        self._sender = Sender(round_index, run, self._traffic)

    def broadcast(self, step: Step, message: Message) -> Replies:
        """Send one message, published once, to all clients; the replies come in client order."""
        return self.scatter(step, dict.fromkeys(self.clients, message))

    def scatter(self, step: Step, messages: Mapping[int, Message], later: Later = None) -> Replies:
        """Send each of the named clients, and nobody later, its own message; replies come in client order."""
        # Keyed by identity: under `broadcast` all clients have the same object, which is published once.
        distinct = {id(message): message for message in messages.values()}
        published = {key: self._sender.publish(message) for key, message in distinct.items()}
        # All are submitted before the first is waited for, so that they run at the same time.
        started = [
            (client, self._sender.observe(client, step, published[id(messages[client])])[1])
            for client in sorted(messages)
        ]
        return Replies([ReceivedReply(client, future.result()) for client, future in started])

    def questions(
        self, step: Step, message: Message, *, answer: str, question: str | None = None
    ) -> EngineQuestions:
        """Start `step` on all clients; see `EngineCohort.questions`. Nothing is counted."""
        published = self._sender.publish(message)
        started = {client: self._sender.observe(client, step, published) for client in self.clients}
        # Observations are for people: answers are neither attacked nor encoded nor counted.
        return EngineQuestions(started, (answer, question), self._traffic, lambda *counted: None, drop=False)
