"""The state that all rounds of a run share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayfed_kd.cluster.engine.interface import Engine
from rayfed_kd.cluster.server.client_records import Records
from rayfed_kd.cluster.server.event_queue import EventQueue
from rayfed_kd.cluster.server.traffic import Counters
from rayfed_kd.errors import RunError
from rayfed_kd.protocol import MeanRule
from rayfed_kd.protocol.wire import Wire
from rayfed_kd.setting.privacy_account import PrivacyAccount
from rayfed_kd.setting.setting import Setting
from rayfed_kd.timing import Schedule, UpdateRule

if TYPE_CHECKING:
    from rayfed_kd.cluster.server.poisoning import Poisoning


@dataclass(frozen=True)
class RunState:
    """The parts of one run. The queue, the records and the counters change from round to round.

    Attributes:
        setting: method, data, partition.
        engine: runs the steps.
        schedule: samples clients, and decides when an update is complete.
        rule: how replies become the server's new vector; None: their weighted mean.
        queue: dispatches without a reply, and the simulated time.
        records: client id -> its record.
        counters: samplings and dispatches so far.
        down, up: encode and decode the parts of messages and of replies.
        poisoning: replaces attackers' replies; None: there is no attack.
        privacy: counts releases and keeps the clip; None: the recipe has no `privacy`.
    """

    setting: Setting
    engine: Engine
    schedule: Schedule
    rule: UpdateRule | None
    queue: EventQueue
    records: Records
    counters: Counters
    down: Wire
    up: Wire
    poisoning: Poisoning | None = None
    privacy: PrivacyAccount | None = None

    @property
    def private_numbers(self) -> int:
        """Numbers that travel beside a message's own each way: a clip that moves, and who lay within."""
        return 0 if self.privacy is None else self.privacy.numbers

    def check_questions(self) -> None:
        """Refuse questions with `privacy`: a method that asks them without declaring `asks`.

        Raises: RunError
        """
        if self.privacy is not None:
            raise RunError(
                "privacy: answers to questions have no noise; expected privacy=null, and a method that says "
                "`asks = True`"
            )

    def rule_in(self, round_index: int, exchange: int = 0) -> MeanRule | None:
        """How the replies of one of a round's exchanges, from 0, become the server's new vector.

        None: by their weighted mean.
        """
        return self.rule if self.privacy is None else self.privacy.rule(round_index, exchange)
