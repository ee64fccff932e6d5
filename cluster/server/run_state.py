"""The state that all rounds of a run share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rayfed_kd.cluster.engine.calls import StepCall
from rayfed_kd.cluster.engine.interface import Engine
from rayfed_kd.cluster.server.client_records import Records
from rayfed_kd.cluster.server.event_queue import EventQueue
from rayfed_kd.cluster.server.features import RoundFeature
from rayfed_kd.cluster.server.traffic import Counters
from rayfed_kd.protocol.wire import Wire
from rayfed_kd.setting.setting import Setting
from rayfed_kd.timing import Schedule, UpdateRule

# A job's places among an exchange's calls, and the sizes of its groups if its replies are summed.
Jobs = Callable[[Sequence[StepCall]], Iterable[tuple[list[int], list[int]]]]


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
        features: what the recipe asks for beside plain rounds, in the order in which it is applied.
        jobs: divides an exchange's calls into jobs, each for one host; see `grouping`.
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
    features: tuple[RoundFeature, ...]
    jobs: Jobs
