"""The schedules under which a round does not wait for its whole cohort."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from rayfed_kd.errors import RecipeError
from rayfed_kd.timing.schedule import Progress, Schedule, ScheduleFacts, ScheduleOptions
from rayfed_kd.timing.staleness import Constant, Polynomial, Staleness
from rayfed_kd.timing.update_rule import Normalisation, UpdateRule

ROUNDING = 1e-9  # subtracted before `ceil`: 0.07 * 100 is 7.000000000000001 in floats, and means 7 clients


class LateOptions(ScheduleOptions):
    """Options of the schedules under which a reply may be late."""

    staleness: Staleness = Field(Constant(), description="weight of a reply by how late it is")
    normalisation: Normalisation = Field("samples", description="what the replies' weights are divided by")
    update: Literal["model", "difference"] = Field(
        "difference", description="a late reply counts by what it changed, or as the model it is"
    )

    def update_rule(self, server_lr: float = 1.0) -> UpdateRule:
        """The update rule of these options, with a server learning rate."""
        difference = self.update == "difference"
        return UpdateRule(self.staleness, self.normalisation, difference, server_lr)


class QuorumOptions(LateOptions):
    """A round ends when enough clients of its cohort have replied."""

    min_fraction: float = Field(0.8, gt=0, le=1, description="share of the cohort that must answer")
    deadline_s: float | None = Field(
        None, gt=0, description="simulated seconds until which all may answer; null: until enough did"
    )
    late: Literal["drop", "next_round"] = Field(
        "drop", description="what a late client's reply is: given up, or part of the round that it comes in"
    )
    over_selection: float = Field(
        0.0, ge=0, le=1e6, description="clients asked beyond the cohort, as a share of it"
    )

    def contradictions(self) -> Iterator[str]:
        unused = {"staleness": not isinstance(self.staleness, Constant), "update": self.update == "model"}
        for name, given in unused.items():
            if given and self.late == "drop":
                yield f"{name} belongs to late: next_round; with drop no reply is late"


class Quorum(Schedule):
    """A round ends when enough clients of its cohort have replied.

    Without a deadline, `min_fraction` of the cohort is enough. With one, the whole cohort may reply until
    then; afterwards `min_fraction` is enough.
    """

    options: QuorumOptions

    def check(self, least_seconds: Sequence[float]) -> None:
        """Refuse a deadline that no client can meet.

        Args:
            least_seconds: [K] lower bounds of the clients' simulated seconds.
        Raises: RecipeError
        """
        deadline_s = self.options.deadline_s
        if deadline_s is not None and min(least_seconds) > deadline_s:
            raise RecipeError(
                f"schedule.deadline_s = {deadline_s:g}: nobody can meet it, the fastest client needs "
                f"{min(least_seconds):.1f} s for its local epochs and the way there and back"
            )

    @property
    def concurrency(self) -> int:
        """The cohort's size with over-selection, rounded up; at most K."""
        wanted = math.ceil(self.facts.cohort * (1 + self.options.over_selection) - ROUNDING)
        return min(self.facts.clients, wanted)

    def is_complete(self, progress: Progress) -> bool:
        """Whether `min_fraction` of the cohort has replied; before the deadline, the whole cohort."""
        # Shares are of the cohort without over-selection: its extra clients only replace stragglers.
        least = math.ceil(self.options.min_fraction * self.facts.cohort - ROUNDING)
        if self.options.deadline_s is None or progress.past_deadline:
            return progress.replies >= least
        return progress.replies >= self.facts.cohort

    def deadline_s(self, round_index: int) -> float:
        """Simulated seconds from an exchange's start to its deadline; infinite: there is none."""
        return math.inf if self.options.deadline_s is None else self.options.deadline_s

    @property
    def drops_late(self) -> bool:
        """Whether stragglers are given up; if not, their replies count in the round of their arrival."""
        return self.options.late == "drop"

    @property
    def rule(self) -> UpdateRule:
        """The options' rule, with a server learning rate of 1."""
        return self.options.update_rule()


class AsynchronousOptions(LateOptions):
    """Options of the schedules without rounds."""

    concurrency: int | None = Field(
        None, ge=1, description="clients at work at a time, instead of `sampling`; null: as many as that says"
    )
    max_staleness: int | None = Field(None, ge=0, description="older replies are dropped; null: none is")


class BufferedOptions(AsynchronousOptions):
    """The server's model changes whenever a buffer of replies is full."""

    buffer: int = Field(10, ge=1, description="replies that form an update")
    server_lr: float = Field(1.0, gt=0, description="server learning rate")


class FedAsyncOptions(AsynchronousOptions):
    """Every reply changes the model."""

    mixing: float = Field(0.6, gt=0, le=1, description="weight of a fresh reply's model, alpha")
    staleness: Staleness = Field(Polynomial(a=0.5), description="FedAsync's s(tau)")
    normalisation: Literal["none"] = Field("none", description="one reply, one update")
    update: Literal["model"] = Field("model", description="models are mixed")


class Asynchronous(Schedule):
    """Base of the schedules without rounds: a client that has replied is replaced at once.

    Raises: RecipeError if `concurrency` is more than K.
    """

    asynchronous: ClassVar[bool] = True
    options: AsynchronousOptions

    def __init__(self, options: Any, facts: ScheduleFacts) -> None:
        super().__init__(options, facts)
        if self.concurrency > facts.clients:
            raise RecipeError(
                f"schedule.concurrency = {self.concurrency}: more than partition.clients = {facts.clients}"
            )

    @property
    def concurrency(self) -> int:
        """Clients at work at a time: the option, else the cohort's size."""
        return self.options.concurrency or self.facts.cohort

    def is_too_late(self, staleness: int) -> bool:
        """Whether a reply is more than `max_staleness` updates old."""
        most = self.options.max_staleness
        return most is not None and staleness > most


class Buffered(Asynchronous):
    """The server's model changes whenever a buffer of replies is full.

    Raises: RecipeError if the buffer is larger than the number of clients at work.
    """

    options: BufferedOptions

    def __init__(self, options: Any, facts: ScheduleFacts) -> None:
        super().__init__(options, facts)
        if self.options.buffer > self.concurrency:
            raise RecipeError(
                f"schedule.buffer = {self.options.buffer}: larger than the {self.concurrency} clients at "
                "work at a time (schedule.concurrency, else sampling)"
            )

    def is_complete(self, progress: Progress) -> bool:
        """Whether the buffer is full."""
        return progress.replies >= self.options.buffer

    @property
    def rule(self) -> UpdateRule:
        """The options' rule, with their `server_lr`."""
        return self.options.update_rule(self.options.server_lr)


class FedBuffOptions(BufferedOptions):
    """`buffered` as published."""

    staleness: Staleness = Field(Polynomial(a=0.5), description="FedBuff's 1/sqrt(1 + tau)")
    normalisation: Normalisation = Field("count", description="FedBuff divides by the buffer's size")


class FedBuff(Buffered):
    """`buffered` as published: Nguyen et al. 2022, arXiv 2106.06639, Algorithm 1.

    w <- w + eta_g / K sum_i s(tau_i) (w_i - w_sent_i), s(tau) = (1 + tau)^-1/2, K = 10
    """

    options: FedBuffOptions


class FedAsync(Asynchronous):
    """Every reply changes the model: Xie, Koyejo, Gupta 2019, arXiv 1903.03934, Algorithm 1.

    w <- (1 - alpha s(tau)) w + alpha s(tau) w_i, s(tau) = (tau + 1)^-a, a = 0.5, alpha = 0.6
    """

    options: FedAsyncOptions

    def is_complete(self, progress: Progress) -> bool:
        """Whether a reply has arrived: each makes an update."""
        return progress.replies >= 1

    @property
    def rule(self) -> UpdateRule:
        """The options' rule: `mixing`, the paper's alpha, takes the place of the server learning rate."""
        return self.options.update_rule(self.options.mixing)
