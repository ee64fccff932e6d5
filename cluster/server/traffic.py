"""A round's traffic and the run's counters."""

from __future__ import annotations

from dataclasses import dataclass, field

from rayfed_kd.cluster.engine.calls import StepFacts
from rayfed_kd.cluster.server.ledger import Ledger


@dataclass
class Traffic:
    """What a round's exchanges leave for the tables.

    Attributes:
        ledger: bytes by client, direction and kind.
        facts: (client, its step's facts), in order of arrival.
        cohort: number of the first exchange's replies, used or dropped.
        staleness: staleness of each used reply, in updates.
        dropped: number of replies that were not used.
        bad: why replies were left out by `faults.bad_replies: drop`, which `dropped` counts, too.
        logged: what codecs of messages counted: name -> (sum, count).
        dispatch_s: real seconds spent on publishing messages.
        answers_s: real seconds spent on waiting for answers to questions.
    """

    ledger: Ledger = field(default_factory=Ledger)
    facts: list[tuple[int, StepFacts]] = field(default_factory=list)
    cohort: int = 0
    staleness: list[int] = field(default_factory=list)
    dropped: int = 0
    bad: list[str] = field(default_factory=list)
    logged: dict[str, tuple[float, int]] = field(default_factory=dict)
    dispatch_s: float = 0.0
    answers_s: float = 0.0

    def leave_out(self, why: str) -> None:
        """Count a bad reply that is not used."""
        self.dropped += 1
        self.bad.append(why)


@dataclass
class Counters:
    """Samplings and dispatches since the run's start. Draws are seeded, and calls numbered, by them."""

    draws: int = 0
    dispatches: int = 0
