"""What a recipe may ask for beside plain rounds: privacy, an attack, sums of replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from rayfed_kd.cluster.engine.calls import StepCall, StepFacts, StepResult
from rayfed_kd.cluster.server.replies import ReceivedReply
from rayfed_kd.protocol import MeanRule, Method, ServerContext


class RoundFeature:
    """A feature at the server: what it does where a round's messages and replies pass. By default nothing."""

    @property
    def numbers(self) -> int:
        """Plain numbers of its own that go down with each message, and up with each reply."""
        return 0

    def outgoing(self, call: StepCall) -> StepCall:
        """A dispatched step's call, or an observation's, as it is to go to a host."""
        return call

    def arrived(self, client: int, facts: StepFacts) -> None:
        """Called with each reply's facts, also those of a reply that is then dropped."""

    def incoming(self, reply: ReceivedReply, result: StepResult) -> ReceivedReply:
        """A reply that will be used, as it came in `result`."""
        return reply

    def replies(self, replies: Sequence[ReceivedReply]) -> Sequence[ReceivedReply]:
        """The replies of an exchange, as the method is to see them."""
        return replies

    def answers(self, part: str, clients: Sequence[int], rows: Tensor) -> Tensor:
        """The answers of K clients to a question, [K, n, ...], as the method is to see them.

        Args:
            part: the name of the answers' part.
            clients: K ids.
            rows: [K, n, ...].
        """
        return rows

    def rule(self, round_index: int, exchange: int) -> MeanRule | None:
        """How an exchange's replies become the server's new vector; None: as without this feature."""
        return None

    def after_nobody(self, method: Method[Any, Any], server: Any, ctx: ServerContext) -> Any:
        """The server's state after a round whose cohort is empty by chance."""
        return server

    def end_round(self, round_index: int) -> Mapping[str, Any]:
        """The round's row of the table that this feature has, by the table's name."""
        return {}

    @property
    def stored(self) -> Mapping[str, Any] | None:
        """What a resumed run needs, as JSON holds it; None: nothing."""
        return None
