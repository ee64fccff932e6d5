"""`privacy` in a run's rounds: the clip goes down, releases are counted, the server's rule adds its noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rayfed_kd.cluster.engine.calls import StepCall, StepFacts
from rayfed_kd.cluster.server.features import RoundFeature
from rayfed_kd.errors import RunError
from rayfed_kd.features.privacy.account import PrivacyAccount
from rayfed_kd.protocol import MeanRule, Method, ServerContext


class Privacy(RoundFeature):
    """The server's side of `privacy`.

    Args:
        account: of what the run has released so far.
    """

    def __init__(self, account: PrivacyAccount) -> None:
        self._account, self.numbers = account, account.numbers

    def outgoing(self, call: StepCall) -> StepCall:
        """The call with the round's clip, if there is one."""
        return call if self._account.clip is None else replace(call, told={"clip": self._account.clip})

    def arrived(self, client: int, facts: StepFacts) -> None:
        """Count a reply's releases."""
        self._account.note(client, int(facts.told["releases"]), facts.told.get("within_clip"))

    def check_questions(self) -> None:
        """Refuse questions of a method that does not declare them, else the recipe was refused.

        Raises: RunError
        """
        raise RunError(
            "privacy: answers to questions have no noise; expected privacy=null, and a method that says "
            "`asks = True`"
        )

    def rule(self, round_index: int, exchange: int) -> MeanRule:
        """See `PrivacyAccount.rule`."""
        return self._account.rule(round_index, exchange)

    def after_nobody(self, method: Method[Any, Any], server: Any, ctx: ServerContext) -> Any:
        """See `PrivacyAccount.after_nobody`."""
        return self._account.after_nobody(method, server, ctx)

    def end_round(self, round_index: int) -> Mapping[str, Any]:
        """The row of the table `privacy`."""
        return {"privacy": self._account.end_round(round_index)}

    @property
    def stored(self) -> Mapping[str, Any]:
        """See `PrivacyAccount.stored`."""
        return self._account.stored
