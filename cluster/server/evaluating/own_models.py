"""Evaluation of clients' own models, also of those whose last layers are the server's.

A client's own model sees its client's test part, in one call on a host that has or fetches the client's
state. It is evaluated again only after a step has changed that state. A server's part behind each client's
first layers is evaluated in one call per client.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import NamedTuple

from rayfed_kd.cluster.engine.calls import PersonalCall, PersonalResult, SharedPart
from rayfed_kd.cluster.engine.interface import Engine
from rayfed_kd.cluster.server.client_records import ClientRecord
from rayfed_kd.protocol import Completing, Evaluable, Handle, Personal

Results = dict[str, dict[int, PersonalResult]]  # model -> client -> its result
Own = dict[int, tuple[int, Future[PersonalResult]]]  # client -> its state's version, its model's result


class StartedOwn(NamedTuple):
    """Evaluations of clients' own models that have been started.

    Attributes:
        personal: names of the models that are wholly the clients' own.
        by_client: client -> (version of its state, future of its own model's result), without those
            whose state has not changed.
        completed: model -> client -> the result of its first layers before the server's.
    """

    personal: tuple[str, ...]
    by_client: Own
    completed: Mapping[str, Mapping[int, Future[PersonalResult]]]

    @property
    def futures(self) -> list[Future[PersonalResult]]:
        """The results of all calls."""
        completed = [future for futures in self.completed.values() for future in futures.values()]
        return [*completed, *(future for _, future in self.by_client.values())]


class OwnModels:
    """Evaluates clients' own models.

    Args:
        engine: runs the evaluations.
        split: "local" (each client's test part) or "official".
        counts: client -> how many test samples its model sees.
    """

    def __init__(self, engine: Engine, split: str, counts: Mapping[int, int]) -> None:
        self._engine, self._split, self._counts = engine, split, counts
        # client -> state version and result of its own model's last evaluation
        self._known: dict[int, tuple[int, PersonalResult]] = {}

    def start(
        self, models: Mapping[str, Evaluable], handle: Handle, records: Mapping[int, ClientRecord]
    ) -> StartedOwn:
        """Start the evaluations of the clients' own models among `models`.

        Args:
            models: as `Method.evaluated` returns them.
            handle: the vectors of those that the server has.
            records: client id -> its record, for the clients' states.
        """
        personal = tuple(name for name, model in models.items() if isinstance(model, Personal))
        completed = {
            name: {k: self._ask(k, records, SharedPart(handle, name, m.architecture)) for k in self._counts}
            for name, m in models.items()
            if isinstance(m, Completing)
        }
        return StartedOwn(personal, self._start_own(records) if personal else {}, completed)

    def _start_own(self, records: Mapping[int, ClientRecord]) -> Own:
        """Start the evaluations of clients' own models whose state has changed since the last one."""
        started = {}
        for client in self._counts:
            version = records.get(client, ClientRecord()).version
            # -1 is no state's version, as a client without a state has version 0: each is evaluated once.
            if self._known.get(client, (-1, 0))[0] != version:
                started[client] = (version, self._ask(client, records))
        return started

    def _ask(
        self, client: int, records: Mapping[int, ClientRecord], part: SharedPart | None = None
    ) -> Future[PersonalResult]:
        """Start the evaluation of a client's own model, or of its first layers before the server's part."""
        record = records.get(client, ClientRecord())
        call = PersonalCall(client, record.state, record.version, self._split, part)
        return self._engine.evaluate(call)

    def results(self, started: StartedOwn) -> Results:
        """The results by model and client; waits for what was started."""
        # This runs in the writer's thread, and `_start_own` reads `_known` in the round's thread. They never
        # overlap: the loop waits for this evaluation before it starts the next one.
        for client, (version, future) in started.by_client.items():
            self._known[client] = (version, future.result())
        results = {client: self._known[client][1] for client in self._counts} if started.personal else {}
        completed = {
            name: {client: future.result() for client, future in futures.items()}
            for name, futures in started.completed.items()
        }
        return {**dict.fromkeys(started.personal, results), **completed}
