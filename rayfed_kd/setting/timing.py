"""The schedule and the clock that a recipe names, as objects, and whether they fit method and data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rayfed_kd.errors import RecipeError
from rayfed_kd.protocol import (
    Clock,
    ClockFacts,
    ClockOptions,
    Devices,
    Method,
    Schedule,
    ScheduleFacts,
)
from rayfed_kd.recipe.registry import load_class
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.staleness import check_weights
from rayfed_kd.recipe.timing import CLOCKS, SCHEDULES, cohort_size
from rayfed_kd.recipe.validation import validate


def schedule_class(recipe: Recipe) -> type[Schedule]:
    """The class of the recipe's schedule.

    Raises: RecipeError if the name is unknown or the object is no schedule.
    """
    return load_class(recipe.schedule.name, SCHEDULES, Schedule, "schedule.name")  # type: ignore[type-abstract]


def clock_class(recipe: Recipe) -> type[Clock]:
    """The class of the recipe's clock.

    Raises: RecipeError if the name is unknown or the object is no clock.
    """
    return load_class(recipe.clock.name, CLOCKS, Clock, "clock.name")  # type: ignore[type-abstract]


def make_schedule(recipe: Recipe) -> Schedule:
    """The recipe's schedule, its options checked by themselves and against the cohort and the clock.

    Raises: RecipeError
    """
    kind, named = schedule_class(recipe), recipe.schedule
    options = validate(kind.options_model(), named.options, "schedule", named.name)
    clock = clock_class(recipe)
    if kind.needs_clock and not (clock.simulated or clock.measured):
        raise RecipeError(
            f"schedule.name = {named.name!r}: which reply comes first is a question of time; expected a "
            "clock, as clock.name=lognormal"
        )
    return kind(options, ScheduleFacts(recipe.partition.clients, cohort_size(recipe), recipe.seed))


def clock_options(recipe: Recipe) -> ClockOptions:
    """The checked options of the recipe's clock.

    Raises: RecipeError
    """
    return validate(clock_class(recipe).options_model(), recipe.clock.options, "clock", recipe.clock.name)


def make_clock(recipe: Recipe, devices: Devices | None) -> Clock:
    """The recipe's clock.

    Args:
        devices: what `load_devices` gave when the run was prepared.

    Raises: RecipeError
    """
    facts = ClockFacts(recipe.partition.clients, recipe.seed, devices)
    return clock_class(recipe)(clock_options(recipe), facts)


def load_devices(recipe: Recipe) -> Devices | None:
    """The devices of the recipe's clock, read or drawn; None if it has none.

    Raises: RecipeError or DataError
    """
    clients = recipe.partition.clients
    devices = clock_class(recipe).make_devices(clock_options(recipe), clients, recipe.seed)
    if devices is not None and len(devices) != clients:
        raise RecipeError(
            f"clock.name = {recipe.clock.name!r}: it makes {len(devices)} devices for {clients} clients"
        )
    return devices


def check_exchanges(recipe: Recipe, method: Method[Any, Any]) -> None:
    """Whether the method's exchanges fit the schedule: asked first, as no clock or option would help.

    Raises: RecipeError
    """
    if not method.asynchronous:
        schedule_class(recipe).check_exchanges(recipe.schedule, recipe.method.name)


def check_schedule(
    schedule: Schedule, clock: Clock, method: Method[Any, Any], recipe: Recipe, sizes: Sequence[int]
) -> None:
    """Refuse what is known to fail before the first round, beside `check_exchanges`.

    Args:
        sizes: [K] training samples.

    Raises: RecipeError
    """
    if not schedule.drops_late and not method.asynchronous:
        raise RecipeError(
            f"schedule.name = {recipe.schedule.name!r}: it keeps late replies, and {recipe.method.name}'s "
            "rounds have several exchanges; a late reply fits none of the next one's; expected sync or quorum"
        )
    check_weights(schedule.rule.staleness, recipe.rounds)
    work = [method.least_samples(size, recipe.local) for size in sizes]
    schedule.check([clock.least_seconds(client, samples) for client, samples in enumerate(work)])
