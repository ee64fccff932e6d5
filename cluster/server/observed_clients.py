"""Clients that run steps without consequences: for `Method.shown` and for questions of the server."""

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
from rayfed_kd.protocol import (
    DispatchFacts,
    Handle,
    Message,
    Number,
    PartRef,
    Replies,
    Step,
    to_array,
)
from rayfed_kd.protocol.crossing import check_package
from rayfed_kd.protocol.wire import PartSize, Sending


class Published(NamedTuple):
    """A message that every host can read: its parts by reference, its metadata, and the parts' sizes."""

    handle: Handle
    metadata: Mapping[str, Number]
    sizes: Mapping[str, PartSize]


class ObservedClients:
    """Clients whose steps only produce something to show, as pictures for `Method.shown`.

    The states after these steps are discarded, no bytes are counted, and no simulated time passes.

    Args:
        clients: ids, ascending.
        round_index: the round that has just ended.
        run: the run's state.
    """

    def __init__(self, clients: Sequence[int], round_index: int, run: RunState) -> None:
        self._clients, self._round, self._run = list(clients), round_index, run
        # A cohort's traffic goes into the tables. That of observations is never read.
        self.traffic = Traffic()
        self._published = 0

    @property
    def clients(self) -> Sequence[int]:
        """The clients' ids, ascending."""
        return self._clients

    def broadcast(self, step: Step, message: Message) -> Replies:
        """Send one message, published once, to all clients; the replies come in client order."""
        return self.scatter(step, dict.fromkeys(self._clients, message))

    def scatter(self, step: Step, messages: Mapping[int, Message]) -> Replies:
        """Send each of the named clients its own message; the replies come in client order."""
        # Keyed by identity: under `broadcast` all clients have the same object, which is published once.
        published = {id(message): self._publish(message) for message in messages.values()}
        # All are submitted before the first is waited for, so that they run at the same time.
        started = [
            (client, self._observe(client, step, published[id(messages[client])])[1])
            for client in sorted(messages)
        ]
        return Replies([ReceivedReply(client, future.result()) for client, future in started])

    def questions(
        self, step: Step, message: Message, *, answer: str, question: str | None = None
    ) -> EngineQuestions:
        """Start `step` on all clients; see `EngineCohort.questions`. Nothing is counted."""
        published = self._publish(message)
        started = {client: self._observe(client, step, published) for client in self._clients}
        # Observations are for people: answers are neither attacked nor encoded nor counted.
        return EngineQuestions(
            started,
            (answer, question),
            self.traffic,
            lambda *counted: None,
            drop=False,
        )

    def _publish(self, message: Message) -> Published:
        """Encode a message's parts with the codec, and publish them to all hosts."""
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
        sent = self._run.down.encoded(parts, Sending(("message", self._round, self._published)))
        if sent.refused:
            raise RunError(f"{where}: part {'; '.join(sent.refused)}")
        for name, number in sent.logged.items():
            total, count = self.traffic.logged.get(name, (0.0, 0))
            self.traffic.logged[name] = total + number, count + 1
        handle = self._run.engine.publish(sent.wire)
        self.traffic.dispatch_s += time.perf_counter() - started
        return Published(handle, message.metadata, sent.sizes)

    def _observe(self, client: int, step: Step, message: Published) -> tuple[StepCall, Future[StepResult]]:
        call = self._call(client, step, message, observing=True)
        (future,) = self._run.engine.submit([call])
        return call, future

    def _call(
        self,
        client: int,
        step: Step,
        message: Published,
        *,
        number: int = 0,
        observing: bool = False,
        replaces: Mapping[str, tuple[PartRef, float]] | None = None,
    ) -> StepCall:
        """A client's step, from the state that its record has now."""
        record, name = self._run.records[client], getattr(step, "__name__", kind_of(step))
        if not callable(getattr(self._run.setting.method, name, None)):
            raise RunError(f"round {self._round}: {name!r} is no step; expected a bound method of the method")
        return StepCall(
            step=name,
            facts=DispatchFacts(client, self._round, record.participations, record.exchange),
            message=message.handle,
            metadata=message.metadata,
            state=record.state,
            state_version=record.version,
            number=number,
            observing=observing,
            clip=None if self._run.privacy is None else self._run.privacy.clip,
            replaces=replaces,
        )
