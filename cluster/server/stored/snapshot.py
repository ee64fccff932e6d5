"""A run's state between two rounds, as checkpoints hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayfed_kd.cluster.server.client_records import ClientRecord
from rayfed_kd.cluster.server.event_queue import Dispatch


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
