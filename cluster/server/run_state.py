"""The state that all rounds of a run share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.engine.interface import Engine
from cluster.server.client_records import Records
from cluster.server.event_queue import EventQueue
from cluster.server.grouping import Grouping
from cluster.server.traffic import Counters
from rayfed_kd.protocol import Schedule, UpdateRule
from rayfed_kd.protocol.wire import Wire
from rayfed_kd.setting.setting import Setting

if TYPE_CHECKING:
    from cluster.server.poisoning import Poisoning


@dataclass(frozen=True)
class RunState:
    """The parts of one run. The queue, the records and the counters change from round to round.

    Attributes:
        setting: method, data, partition.
        engine: runs the steps.
        schedule: samples clients, and decides when an update is complete.
        rule: how replies become the server's new vector.
        queue: dispatches without a reply, and the simulated time.
        records: client id -> its record.
        counters: samplings and dispatches so far.
        grouping: which clients' steps run as one batch.
        down, up: encode and decode the parts of messages and of replies.
        poisoning: replaces attackers' replies; None: there is no attack.
    """

    setting: Setting
    engine: Engine
    schedule: Schedule
    rule: UpdateRule
    queue: EventQueue
    records: Records
    counters: Counters
    grouping: Grouping
    down: Wire
    up: Wire
    poisoning: Poisoning | None = None
