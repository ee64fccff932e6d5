"""What a recipe may say about rounds and time: the options of every schedule and of every clock.

Pure options; cluster/server/schedules.py and cluster/server/clock.py do what they say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from rayfed_kd.errors import RecipeError, nearest
from rayfed_kd.recipe.schema import Named, Recipe
from rayfed_kd.recipe.staleness import Staleness
from rayfed_kd.recipe.validation import validate

Normalisation = Literal["none", "count", "weight_sum", "samples"]
Update = Literal["model", "difference"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ScheduleOptions(_Strict):
    """Base of every schedule's options."""


class SyncOptions(ScheduleOptions):
    """Each round waits for its whole cohort."""


class _Stale(ScheduleOptions):
    """Schedules under which a reply may come late."""

    staleness: Staleness = Field(Staleness(), description="weight of a reply by how late it is")
    normalisation: Normalisation = Field("samples", description="what the replies' weights are divided by")
    update: Update = Field(
        "difference", description="a late reply counts by what it changed, or as the model it is"
    )


class QuorumOptions(_Stale):
    """A round ends when enough of its cohort answered."""

    min_fraction: float = Field(0.8, gt=0, le=1, description="share of the cohort that must answer")
    deadline_s: float | None = Field(
        None,
        gt=0,
        description="simulated seconds until which all may answer; null: until enough did",
    )
    late: Literal["drop", "next_round"] = Field(
        "drop", description="what a late client's reply is: given up, or part of the round that it comes in"
    )
    over_selection: float = Field(0.0, ge=0, description="clients asked beyond the cohort, as a share of it")


class AsynchronousOptions(_Stale):
    """No rounds: who answered is replaced at once."""

    concurrency: int | None = Field(
        None, ge=1, description="clients at work at a time, instead of `sampling`; null: as many as that says"
    )
    max_staleness: int | None = Field(None, ge=0, description="older replies are dropped; null: none is")


class BufferedOptions(AsynchronousOptions):
    """The server's model changes whenever a buffer of replies is full."""

    buffer: int = Field(10, ge=1, description="replies that form an update")
    server_lr: float = Field(1.0, gt=0, description="server learning rate")


class FedBuffOptions(BufferedOptions):
    """`buffered` as published: Nguyen et al. 2022, arXiv 2106.06639, Algorithm 1.

    w <- w + eta_g / K sum_i s(tau_i) (w_i - w_sent_i), s(tau) = (1 + tau)^-1/2, K = 10
    """

    staleness: Staleness = Field(Staleness(name="polynomial", a=0.5), description="FedBuff's 1/sqrt(1 + tau)")
    normalisation: Normalisation = Field("count", description="FedBuff divides by the buffer's size")


class FedAsyncOptions(AsynchronousOptions):
    """Every reply changes the model: Xie, Koyejo, Gupta 2019, arXiv 1903.03934, Algorithm 1.

    w <- (1 - alpha s(tau)) w + alpha s(tau) w_i, s(tau) = (tau + 1)^-a, a = 0.5, alpha = 0.6
    """

    mixing: float = Field(0.6, gt=0, le=1, description="weight of a fresh reply's model, alpha")
    staleness: Staleness = Field(Staleness(name="polynomial", a=0.5), description="FedAsync's s(tau)")
    normalisation: Literal["none"] = Field("none", description="one reply, one update")
    update: Literal["model"] = Field("model", description="models are mixed")


class ClockOptions(_Strict):
    """Base of every clock's options."""


class NoClockOptions(ClockOptions):
    """No simulated time."""


class RealOptions(ClockOptions):
    """Replies are applied as they come on this cluster: for those who study it. Does not repeat."""


class ConstantOptions(ClockOptions):
    """All devices alike."""

    seconds_per_sample: float = Field(0.002, ge=0, description="one training sample in one epoch")
    up_mbit_s: float = Field(10.0, gt=0, description="bandwidth up, 10^6 bits a second")
    down_mbit_s: float = Field(50.0, gt=0, description="bandwidth down, 10^6 bits a second")
    latency_s: float = Field(0.05, ge=0, description="of a message, each way, seconds")


class LogNormalOptions(ConstantOptions):
    """Devices drawn once a run: the constants are medians, log-normal around them."""

    compute_sigma: float = Field(0.8, ge=0, description="standard deviation of ln(seconds per sample)")
    bandwidth_sigma: float = Field(0.8, ge=0, description="standard deviation of ln(bandwidth), up and down")


class TraceOptions(ClockOptions):
    """Devices from a file, one row per client and interval of availability."""

    file: str = Field(description=".parquet or .csv: client, seconds_per_sample, up_mbit_s, down_mbit_s, ...")
    period_s: float | None = Field(
        None, gt=0, description="availability repeats after so many seconds; null: after the last interval"
    )


SCHEDULES: Mapping[str, type[ScheduleOptions]] = {
    "sync": SyncOptions,
    "quorum": QuorumOptions,
    "buffered": BufferedOptions,
    "fedbuff": FedBuffOptions,
    "fedasync": FedAsyncOptions,
}
CLOCKS: Mapping[str, type[ClockOptions]] = {
    "none": NoClockOptions,
    "constant": ConstantOptions,
    "lognormal": LogNormalOptions,
    "trace": TraceOptions,
    "real": RealOptions,
}

Options = TypeVar("Options", bound=BaseModel)


def schedule_options(recipe: Recipe) -> ScheduleOptions:
    """The recipe's schedule, checked by itself and against the cohort and the clock.

    Raises: RecipeError
    """
    options = _options(SCHEDULES, recipe.schedule, "schedule")
    name, clock = recipe.schedule.name, recipe.clock.name
    if name != "sync" and clock == "none":
        raise RecipeError(
            f"schedule.name = {name!r}: which reply comes first is a question of time; expected a clock, as "
            "clock.name=lognormal"
        )
    clients = recipe.partition.clients
    at_work = cohort_size(recipe)
    if isinstance(options, AsynchronousOptions):
        at_work = options.concurrency or at_work
        if at_work > clients:
            raise RecipeError(f"schedule.concurrency = {at_work}: more than partition.clients = {clients}")
    if isinstance(options, BufferedOptions) and options.buffer > at_work:
        raise RecipeError(
            f"schedule.buffer = {options.buffer}: larger than the {at_work} clients at work at a time "
            "(schedule.concurrency, else sampling)"
        )
    return options


def clock_options(recipe: Recipe) -> ClockOptions:
    """The recipe's clock.

    Raises: RecipeError
    """
    return _options(CLOCKS, recipe.clock, "clock")


def cohort_size(recipe: Recipe) -> int:
    """m = max(1, round(C K)), or the given count."""
    sampling = recipe.sampling
    if sampling.count is not None:
        return sampling.count
    assert sampling.fraction is not None
    return max(1, round(sampling.fraction * recipe.partition.clients))


def _options(known: Mapping[str, type[Options]], named: Named, path: str) -> Options:
    if named.name not in known:
        raise RecipeError(
            f"{path}.name = {named.name!r}: expected one of {', '.join(known)}.",
            hint=nearest(named.name, known),
        )
    return validate(known[named.name], named.options, path, named.name)
