"""A run's state: what all rounds share, a snapshot between two of them, and the jobs of a round.

Groups follow client order, never hosts. `local.vectorise` says how many clients of one architecture train as
one program (rayfed_kd/setting/client_groups.py), `local.sum_replies` how many have their replies added at
their host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rayfed_kd.cluster.engine.calls import StepCall
from rayfed_kd.cluster.engine.interface import Engine
from rayfed_kd.cluster.server.client_records import ClientRecord, Records
from rayfed_kd.cluster.server.event_queue import Dispatch, EventQueue
from rayfed_kd.cluster.server.features import RoundFeature
from rayfed_kd.cluster.server.traffic import Counters
from rayfed_kd.setting.setting import Setting
from rayfed_kd.timing import Schedule, UpdateRule


@dataclass(frozen=True)
class RunState:
    """The parts of one run. The queue, the records and the counters change from round to round.

    Attributes:
        setting: method, data, partition, wires.
        engine: runs the steps.
        schedule: samples clients, and decides when an update is complete.
        rule: how replies become the server's new vector; None: their weighted mean.
        queue: dispatches without a reply, and the simulated time.
        records: client id -> its record.
        counters: samplings and dispatches so far.
        features: what the recipe asks for beside plain rounds, in the order in which it is applied.
    """

    setting: Setting
    engine: Engine
    schedule: Schedule
    rule: UpdateRule | None
    queue: EventQueue
    records: Records
    counters: Counters
    features: tuple[RoundFeature, ...]


@dataclass(frozen=True)
class Snapshot:
    """A run's state between two rounds.

    Attributes:
        round: the last completed round; 0 before the first.
        server: the method's server state.
        records: client id -> its record, for every client that was dispatched.
        wall_s: real seconds of work until then.
        now: simulated seconds until then.
        draws, dispatches: client samplings and dispatches until then.
        under_way: dispatches without a reply yet; their replies belong to later rounds.
        privacy: what `PrivacyAccount.stored` gives; None without `privacy`.
        asked_rounds: whether the method asked how many rounds the recipe has.
    """

    round: int
    server: Any
    records: Mapping[int, ClientRecord]
    wall_s: float
    now: float = 0.0
    draws: int = 0
    dispatches: int = 0
    under_way: Sequence[Dispatch] = ()
    privacy: Mapping[str, Any] | None = None
    asked_rounds: bool = False


def jobs(calls: Sequence[StepCall], setting: Setting) -> Iterator[tuple[list[int], list[int]]]:
    """Divide an exchange's calls into jobs, each for one host: groups, or all whose replies it sums.

    `local.sum_replies` calls in a row are summed, in the last job perhaps fewer. Groups lie within jobs.

    Args:
        calls: the exchange's calls, in client order.
        setting: says how many train together, how many are summed, and the clients' architectures.
    Yields: for each job places in `calls`, group by group, and the groups' sizes if its replies are summed;
        else no sizes. A group of one is a plain step.
    """
    most = setting.recipe.local.sum_replies
    if most == "off":
        yield from ((places, []) for places in _groups(calls, setting))
        return
    for start in range(0, len(calls), most):
        groups = _groups(calls[start : start + most], setting)
        yield [start + place for places in groups for place in places], [len(places) for places in groups]


def _groups(calls: Sequence[StepCall], setting: Setting) -> list[list[int]]:
    """Places in `calls`, group by group."""
    if setting.groups.size == 1:
        return [[place] for place in range(len(calls))]
    # Groups start in the order of their first clients, also with several architectures.
    return sorted(
        part for places in _alike(calls, setting).values() for part in _parts(places, setting.groups.size)
    )


def _alike(calls: Sequence[StepCall], setting: Setting) -> Mapping[str, list[int]]:
    """Architecture -> places of its clients' calls, in client order."""
    places_by_model: dict[str, list[int]] = {}
    for place, call in enumerate(calls):
        name = setting.architectures.of_client(call.facts.client)
        places_by_model.setdefault(name, []).append(place)
    return places_by_model


def _parts(places: Sequence[int], most: int) -> list[list[int]]:
    """Split `places`, in order, into as few parts of at most `most` as possible, of about equal size."""
    count = math.ceil(len(places) / most)
    cuts = [len(places) * part // count for part in range(count + 1)]
    return [list(places[start:stop]) for start, stop in pairwise(cuts)]
