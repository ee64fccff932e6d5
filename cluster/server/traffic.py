"""What a round's exchanges left, and what the run has counted."""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.engine.calls import StepFacts
from cluster.server.ledger import Ledger


@dataclass
class Traffic:
    """What a round's exchanges left.

    Attributes:
        ledger: what crossed.
        facts: (client, its step's facts).
        cohort: replies of the first exchange, used or dropped.
        staleness: of each reply that was used.
        dropped: replies that were left out.
        dispatch_s: seconds spent on publishing messages.
        answers_s: seconds spent on waiting for answers to questions.
    """

    ledger: Ledger = field(default_factory=Ledger)
    facts: list[tuple[int, StepFacts]] = field(default_factory=list)
    cohort: int = 0
    staleness: list[int] = field(default_factory=list)
    dropped: int = 0
    dispatch_s: float = 0.0
    answers_s: float = 0.0


@dataclass
class Counters:
    """What has been drawn and dispatched since the run's start: decides draws and names dispatches."""

    draws: int = 0
    dispatches: int = 0
