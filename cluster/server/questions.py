"""Questions that the server asks its clients while it trains. The answers are computed ahead.

Clients do not change while the server trains. So each client computes all its answers in one call, which
starts before the first question; the answers stay in the object store. A question waits for the answers,
reads the rows of the ids that are asked for, and counts only these rows and ids: a real deployment would
send no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rayfed_kd.cluster.engine.calls import StepCall, StepResult
from rayfed_kd.errors import RunError
from rayfed_kd.protocol import Array, to_tensor
from rayfed_kd.protocol.wire import UNCODED, PartSize, Sending, Wire

if TYPE_CHECKING:
    from rayfed_kd.cluster.server.features import RoundFeature
    from rayfed_kd.cluster.server.traffic import Traffic

Started = Mapping[int, tuple[StepCall, "Future[StepResult]"]]
Count = Callable[[StepCall, Any, Mapping[str, PartSize], int], None]


class EngineQuestions:
    """See `rayfed_kd.protocol.method.Questions`.

    Args:
        started: client -> its call, and the future of its answers.
        parts: names of the answer's and of the question's part; None: ids need not travel.
        traffic: the round's traffic.
        count: counts one message or reply of a call.
        drop: whether a client with a non-finite answer is left out from then on; if not, the run ends.
        wires: encode the rows that are asked for, and the ids that ask.
        features: what the recipe asks for beside plain rounds.
        number: which of the round's sets of questions this is, from 1: each has random streams of its own.
    """

    def __init__(
        self,
        started: Started,
        parts: tuple[str, str | None],
        traffic: Traffic,
        count: Count,
        *,
        drop: bool,
        wires: tuple[Wire, Wire] = (UNCODED, UNCODED),
        features: Sequence[RoundFeature] = (),
        number: int = 1,
    ) -> None:
        # The first has no number of its own, as the first step of a client has none.
        self._stream = ("answer",) if number == 1 else ("answer", f"set {number}")
        self._features, (self._wire, self._down) = features, wires
        self._started, self._traffic, self._count, self._drop = dict(started), traffic, count, drop
        self._answer, self._question = parts
        self._arrived: dict[int, Array] = {}
        self._asked = 0

    def ask(self, ids: Tensor) -> Tensor:
        """Ask all clients.

        Args:
            ids: [n] rows of the clients' answers.
        Returns: [K, n, ...] answers of the K clients that are left, in client order.
        Raises: RunError if an answer is not finite and `drop` is off, or no client is left.
        """
        chosen, self._asked = ids.cpu().numpy(), self._asked + 1
        if self._question is not None:
            ids_sent = {self._question: chosen.astype(np.int32)}  # an id counts as a 32-bit integer
            sizes = self._down.encoded(ids_sent, Sending(("ids", *self._stream, self._asked))).sizes
            for call, _ in self._started.values():
                self._count(call, "down", sizes, 0)
        # Over a copy of the keys, as `_rows` removes a client whose answer is dropped.
        answers = [rows for client in list(self._started) if (rows := self._rows(client, chosen)) is not None]
        if not answers:
            raise RunError("no client is left that answers with finite values")
        together = torch.stack(answers)
        for feature in self._features:
            # Those that `_rows` removed are gone here, too: one id for each row, in the same order.
            together = feature.answers(self._answer, list(self._started), together)
        return together

    def _rows(self, client: int, chosen: Array) -> Tensor | None:
        call, _ = self._started[client]
        # The client has computed all rows; only those of the chosen ids would travel.
        sending = Sending((*self._stream, *call.facts.scope, self._asked))
        try:
            rows = self._arrival(client)[chosen]
        except IndexError as error:
            raise RunError(f"{call}: {self._answer!r} has no such rows: {error}") from None
        sent = self._wire.encoded({self._answer: rows}, sending)
        self._count(call, "up", sent.sizes, 0)
        rows = self._wire.decoded(sent.wire)[self._answer]
        if np.isfinite(rows).all() and not sent.refused:
            return to_tensor(rows)
        why = (
            f"{call}: answer {'; '.join(sent.refused)}"
            if sent.refused
            else f"{call}: answer {self._answer} has NaN or infinite values; expected finite ones. "
            "Where clients train, a lower local.optimizer.lr is the usual cure."
        )
        if not self._drop:
            raise RunError(why)
        self._traffic.leave_out(why)
        del self._started[client]
        return None

    def _arrival(self, client: int) -> Array:
        """A client's answers to all ids, in place in the object store."""
        if client not in self._arrived:
            call, future = self._started[client]
            started = time.perf_counter()
            result = future.result()
            self._traffic.answers_s += time.perf_counter() - started
            self._traffic.facts.append((client, result.facts))
            if self._answer not in result.facts.sizes:
                names = ", ".join(sorted(result.facts.sizes)) or "no parts"
                raise RunError(f"{call}: it gave no {self._answer!r}, which is asked for; there are {names}")
            self._arrived[client] = result.parts.resolve()[self._answer]
        return self._arrived[client]
