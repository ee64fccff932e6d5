"""Clients that run steps without consequences: for `Method.shown` and for questions of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rayfed_kd.cluster.server.questions import EngineQuestions
from rayfed_kd.cluster.server.replies import ReceivedReply
from rayfed_kd.cluster.server.run_state import RunState
from rayfed_kd.cluster.server.sender import Sender
from rayfed_kd.cluster.server.traffic import Traffic
from rayfed_kd.protocol import Message, Replies, Step
from rayfed_kd.protocol.wire import UNCODED


class ObservedClients:
    """Clients whose steps only produce something to show, as pictures for `Method.shown`.

    The states after these steps are discarded, no bytes are counted, and no simulated time passes.

    Args:
        clients: ids, ascending.
        round_index: the round that has just ended.
        run: the run's state.
    """

    def __init__(self, clients: Sequence[int], round_index: int, run: RunState) -> None:
        self._clients = list(clients)
        # A cohort's traffic goes into the tables. That of observations is never read.
        self._traffic = Traffic()
        self._sender = Sender(round_index, run, self._traffic)

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
        published = {id(message): self._sender.publish(message) for message in messages.values()}
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
        started = {client: self._sender.observe(client, step, published) for client in self._clients}
        # Observations are for people: answers are neither attacked nor encoded nor counted.
        return EngineQuestions(
            started, (answer, question), self._traffic, lambda *counted: None, drop=False, wire=UNCODED
        )
