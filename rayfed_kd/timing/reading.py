"""The schedule and the clock that a recipe names, as objects, and whether they fit method and data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rayfed_kd.errors import RecipeError
from rayfed_kd.protocol import Method
from rayfed_kd.recipe.registry import blaming, load_object
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.timing import CLOCKS, SCHEDULES, cohort_size, sampling_rate
from rayfed_kd.timing.clock import Clock, ClockFacts, ClockOptions
from rayfed_kd.timing.devices import Devices
from rayfed_kd.timing.schedule import Progress, Schedule, ScheduleFacts
from rayfed_kd.timing.staleness import check_weights


def schedules_in_rounds() -> list[str]:
    """Names of the registered schedules that methods with several exchanges a round run under."""
    paths = SCHEDULES.items()
    return [name for name, path in paths if not load_object(path, "schedule.name").asynchronous]


@dataclass(frozen=True)
class Timing:
    """A recipe's schedule and clock, parsed and checked.

    The options are parsed once, where the recipe is prepared; other processes get this object.

    Attributes:
        schedule: samples clients, and decides when an update is complete.
        clock_class: the clock's.
        clock_options: its checked options, of the class's `options_model`.
    """

    schedule: Schedule
    clock_class: type[Clock]
    clock_options: ClockOptions

    def load_devices(self) -> Devices | None:
        """The clients' devices, read or drawn; None if the clock has none.

        Raises: RecipeError or DataError
        """
        facts = self.schedule.facts
        devices = self.clock_class.make_devices(self.clock_options, facts.clients, facts.seed)
        if devices is not None and len(devices) != facts.clients:
            clock = f"{self.clock_class.__module__}:{self.clock_class.__qualname__}"
            raise RecipeError(f"clock.name: {clock} makes {len(devices)} devices for {facts.clients} clients")
        return devices

    def make_clock(self, devices: Devices | None) -> Clock:
        """The clock.

        Args:
            devices: what `load_devices` gave when the run was prepared.

        Raises: RecipeError if an option does not fit the devices.
        """
        facts = self.schedule.facts
        return self.clock_class(self.clock_options, ClockFacts(facts.clients, facts.seed, devices))


def read_timing(recipe: Recipe) -> Timing:
    """The recipe's schedule and clock, their options checked.

    Raises: RecipeError
    """
    schedule, clock = SCHEDULES.bound(recipe.schedule, "schedule"), CLOCKS.bound(recipe.clock, "clock")
    join = sampling_rate(recipe) if recipe.sampling.poisson else None
    facts = ScheduleFacts(recipe.partition.clients, cohort_size(recipe), recipe.seed, join)
    return Timing(schedule.found(schedule.options, facts), clock.found, clock.options)


def check_exchanges(recipe: Recipe, method: Method[Any, Any]) -> None:
    """Whether rounds of several exchanges meet an asynchronous schedule: asked first, as no option helps.

    Raises: RecipeError
    """
    kind: type[Schedule] = SCHEDULES.find(recipe.schedule.name, "schedule.name")
    if kind.asynchronous and not method.asynchronous:
        raise RecipeError(
            f"schedule.name = {recipe.schedule.name!r}: {recipe.method.name}'s rounds have several "
            f"exchanges; expected {' or '.join(schedules_in_rounds())}"
        )


def check_timing(timing: Timing, recipe: Recipe, method: Method[Any, Any]) -> None:
    """Whether method and clock fit the schedule. The method is looked at first, as no clock would help it.

    Raises: RecipeError
    """
    name = recipe.schedule.name
    if not timing.schedule.drops_late and not method.asynchronous:
        raise RecipeError(
            f"schedule.name = {name!r}: with these options it keeps late replies, and {recipe.method.name}'s "
            "rounds have several exchanges, a late reply fits none of the next one's; expected sync, or "
            "quorum with late: drop"
        )
    if timing.schedule.needs_clock and not (timing.clock_class.simulated or timing.clock_class.measured):
        raise RecipeError(
            f"schedule.name = {name!r}: which reply comes first is a question of time; expected a clock, as "
            "clock.name=lognormal"
        )


def replies_of(schedule: Schedule, rounds: int, *, past_deadline: bool = False) -> int:
    """The fewest replies with which the last of so many updates may end, before or past its deadline."""
    most = schedule.concurrency
    at = (Progress(rounds, n, at_work=most - n, past_deadline=past_deadline) for n in range(1, most))
    return next((progress.replies for progress in at if schedule.is_complete(progress)), most)


def check_schedule(
    schedule: Schedule, clock: Clock, method: Method[Any, Any], recipe: Recipe, sizes: Sequence[int]
) -> None:
    """Refuse what is known to fail before the first round, beside `check_timing`.

    Args:
        sizes: [K] training samples.

    Raises: RecipeError
    """
    if recipe.schedule.name not in SCHEDULES:
        with blaming(f"schedule.name: {recipe.schedule.name}"):
            _check_repeats(schedule)
    if schedule.rule is not None:
        check_weights(schedule.rule.staleness, recipe.rounds)
    work = [method.least_samples(size, recipe.local) for size in sizes]
    schedule.check([clock.least_seconds(client, samples) for client, samples in enumerate(work)])


def _check_repeats(schedule: Schedule) -> None:
    """Refuse a user's own whose second sample depends on its first one, or on what it draws elsewhere.

    Raises: RecipeError
    """
    whole, resumed = (type(schedule)(schedule.options, schedule.facts) for _ in range(2))
    clients, count = range(schedule.facts.clients), schedule.concurrency
    asked = (whole, 1), (whole, 2), (resumed, 2)
    _, second, again = (list(new.sample(clients, count, draw)) for new, draw in asked)
    if second != again:
        raise RecipeError(
            "schedule.name: it samples other clients after a resume; expected draws from "
            "numpy_stream(self.facts.seed, ...) and nothing kept between two samples"
        )
