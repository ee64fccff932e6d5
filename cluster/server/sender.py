"""What goes out to clients: published messages, and the calls of their steps."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import NamedTuple

from rayfed_kd.cluster.engine.calls import StepCall, StepResult
from rayfed_kd.cluster.server.run_state import RunState
from rayfed_kd.cluster.server.traffic import Traffic
from rayfed_kd.errors import RunError, kind_of
from rayfed_kd.protocol import DispatchFacts, Handle, Message, Number, Step, to_array
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
        sent = self._run.down.encoded(parts, Sending(("message", self._round, self._published)))
        if sent.refused:
            raise RunError(f"{where}: part {'; '.join(sent.refused)}")
        for name, number in sent.logged.items():
            total, count = self._traffic.logged.get(name, (0.0, 0))
            self._traffic.logged[name] = total + number, count + 1
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
