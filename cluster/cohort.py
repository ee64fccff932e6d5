"""The cohort that a round sees: messages out, replies in, every byte counted, states kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from cluster.calls import StepCall, StepFacts, StepResult
from cluster.engine import Engine
from cluster.questions import EngineQuestions
from rayfed_kd.contexts import DispatchFacts
from rayfed_kd.errors import RunError
from rayfed_kd.ledger import Ledger
from rayfed_kd.protocol import Handle, Message, Method, Replies, Reply, Step, to_array, to_tensor

if TYPE_CHECKING:
    from cluster.poisoning import Poisoning


class NonFiniteError(RunError):
    """A reply has NaN or infinite values."""


@dataclass
class ClientRecord:
    """What the server remembers of a client.

    Attributes:
        participations: how often it was dispatched.
        state: its latest state, by reference.
        version: how many steps made that state.
        exchange: steps run in the current dispatch.
    """

    participations: int = 0
    state: Handle | None = None
    version: int = 0
    exchange: int = 0


@dataclass
class Traffic:
    """What a round's exchanges left.

    Attributes:
        ledger: what crossed.
        facts: (client, its step's facts).
        dropped: replies that were left out.
        dispatch_s: seconds spent on publishing messages.
        client_s: seconds spent on waiting for clients.
    """

    ledger: Ledger = field(default_factory=Ledger)
    facts: list[tuple[int, StepFacts]] = field(default_factory=list)
    dropped: int = 0
    dispatch_s: float = 0.0
    client_s: float = 0.0


class EngineCohort:
    """A cohort whose steps an engine runs.

    Args:
        clients: ids, ascending.
        round_index: from 1.
        observing: a look for people: states after it are thrown away, nothing is counted or checked.
        drop: a reply that is not finite is left out, its client's state stays; otherwise it ends the run.
        poisoning: replaces attackers' replies; None: all are honest.
    """

    def __init__(
        self,
        clients: Sequence[int],
        round_index: int,
        method: Method[Any, Any],
        engine: Engine,
        records: dict[int, ClientRecord],
        *,
        observing: bool = False,
        drop: bool = False,
        poisoning: Poisoning | None = None,
    ) -> None:
        self._drop, self._poisoning = drop, poisoning
        self._clients, self._round, self._method = list(clients), round_index, method
        self._engine, self._records, self._observing = engine, records, observing
        self.traffic = Traffic()
        for client in () if observing else self._clients:
            record = records.setdefault(client, ClientRecord())
            record.participations += 1
            record.exchange = 0

    @property
    def clients(self) -> Sequence[int]:
        """The cohort's ids, ascending."""
        return self._clients

    def broadcast(self, step: Step, message: Message) -> Replies:
        """One message to all, published once; the replies in client order."""
        handle = self._publish(message)
        return self._gather({client: self._start(client, step, message, handle) for client in self._clients})

    def scatter(self, step: Step, messages: Mapping[int, Message]) -> Replies:
        """One message each."""
        return self._gather(
            {c: self._start(c, step, messages[c], self._publish(messages[c])) for c in sorted(messages)}
        )

    def submit(self, client: int, step: Step, message: Message) -> Callable[[], Reply]:
        """Starts one client's step; call the result to wait for its reply."""
        if self._poisoning is not None:
            raise RunError(
                "attack: a reply that comes alone cannot be poisoned; expected broadcast or scatter"
            )
        started = self._start(client, step, message, self._publish(message))
        return lambda: self._received(client, *started)

    def questions(
        self, step: Step, message: Message, *, answer: str, question: str | None = None
    ) -> EngineQuestions:
        """Starts `step` everywhere; what it computes ahead is counted when it is asked for."""
        ahead = self._observers()
        handle = self._publish(message)
        started = {client: ahead._start(client, step, message, handle) for client in self._clients}
        shapes = {name: (part.numel(), part.element_size()) for name, part in message.parts.items()}
        for call, _ in started.values():
            self._count(call, "down", shapes, len(message.metadata))
        self.traffic.client_s += ahead.traffic.client_s
        parts = (answer, question)
        return EngineQuestions(
            started, parts, self.traffic, self._count, drop=self._drop, poisoning=self._poisoning
        )

    def _observers(self) -> EngineCohort:
        """The same clients, whose states stay as they are."""
        return EngineCohort(
            self._clients, self._round, self._method, self._engine, self._records, observing=True
        )

    def _publish(self, message: Message) -> Handle:
        started = time.perf_counter()
        handle = self._engine.publish({name: to_array(part) for name, part in message.parts.items()})
        self.traffic.dispatch_s += time.perf_counter() - started
        return handle

    def _start(
        self, client: int, step: Step, message: Message, handle: Handle
    ) -> tuple[StepCall, Future[StepResult]]:
        if client not in self._clients:
            raise RunError(f"round {self._round}: client {client} is not in the cohort {self._clients}")
        record = self._records[client]
        facts = DispatchFacts(client, self._round, record.participations, record.exchange)
        name = step.__name__
        call = StepCall(name, facts, handle, message.metadata, record.state, record.version, self._observing)
        if not self._observing:
            record.exchange += 1
            shapes = {n: (part.numel(), part.element_size()) for n, part in message.parts.items()}
            self._count(call, "down", shapes, len(message.metadata))
        started = time.perf_counter()
        future = self._engine.submit(call)
        self.traffic.client_s += time.perf_counter() - started
        return call, future

    def _gather(self, started: Mapping[int, tuple[StepCall, Future[StepResult]]]) -> Replies:
        replies = []
        for client, start in started.items():
            try:
                replies.append(self._received(client, *start))
            except NonFiniteError as error:
                if not self._drop:
                    raise
                self.traffic.dropped += 1
                last = error
        if not replies:
            raise RunError(f"{last} No reply of round {self._round} is left.")
        return Replies(replies if self._poisoning is None else self._poisoning.replies(replies))

    def _received(self, client: int, call: StepCall, future: Future[StepResult]) -> Reply:
        started = time.perf_counter()
        result = future.result()
        self.traffic.client_s += time.perf_counter() - started
        reply: Reply = Reply.of(LazyParts(result.parts, list(result.facts.shapes)), result.facts.metadata)
        reply.client, reply.handle = client, result.parts
        if self._observing:
            return reply
        self._count(call, "up", result.facts.shapes, len(result.facts.metadata))
        if result.facts.non_finite:
            bad = ", ".join(result.facts.non_finite)
            raise NonFiniteError(
                f"{call}: reply part {bad} has NaN or infinite values; expected finite ones. "
                f"A lower local.optimizer.lr is the usual cure."
            )
        record = self._records[client]
        record.state, record.version = result.state, record.version + 1
        self.traffic.facts.append((client, result.facts))
        return reply

    def _count(
        self, call: StepCall, direction: Any, shapes: Mapping[str, tuple[int, int]], metadata: int
    ) -> None:
        declared = self._method.down if direction == "down" else self._method.up
        try:
            self.traffic.ledger.count(call.facts.client, direction, declared, shapes, metadata)
        except RunError as error:
            raise RunError(f"{call}: {error}") from None


class LazyParts(Mapping[str, Tensor]):
    """A reply's parts, fetched when asked and not kept."""

    def __init__(self, handle: Handle, names: Sequence[str]) -> None:
        self._handle, self._names = handle, names

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return to_tensor(self._handle.resolve()[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
