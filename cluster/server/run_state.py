"""What all rounds of a run share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.engine.interface import Engine
from cluster.server.client_records import Records
from cluster.server.event_queue import EventQueue
from cluster.server.grouping import Grouping
from cluster.server.traffic import Counters
from rayfed_kd.protocol import Schedule, UpdateRule
from rayfed_kd.protocol.message_codec import Wire
from rayfed_kd.setting.setting import Setting

if TYPE_CHECKING:
    from cluster.server.poisoning import Poisoning


@dataclass(frozen=True)
class RunState:
    """One run, as its rounds change it.

    Attributes:
        setting: method, data, partition.
        engine: runs the steps.
        schedule: whom to ask, and when there is enough.
        rule: how replies become the server's new vector.
        queue: dispatches under way, and the time.
        records: what is known of every client.
        counters: draws and dispatches so far.
        grouping: which steps run together.
        down, up: how parts travel.
        poisoning: replaces attackers' replies; None: all are honest.
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
