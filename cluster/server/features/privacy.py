"""`privacy` in a run's rounds: the clip goes down, releases are counted, the server's rule adds its noise."""

from __future__ import annotations

from dataclasses import replace

from rayfed_kd.cluster.engine.calls import StepCall, StepFacts
from rayfed_kd.cluster.server.features import RoundFeature
from rayfed_kd.features.privacy.account import PrivacyAccount


class Privacy(PrivacyAccount, RoundFeature):
    """The server's side of `privacy`: what the account does, and what passes between server and clients."""

    def outgoing(self, call: StepCall) -> StepCall:
        """The call with the round's clip, if there is one."""
        return call if self.clip is None else replace(call, told={"clip": self.clip})

    def arrived(self, client: int, facts: StepFacts) -> None:
        """Count a reply's releases."""
        self.note(client, int(facts.told["releases"]), facts.told.get("within_clip"))
