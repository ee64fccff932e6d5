"""Schedules: who is dispatched when, and which replies form an update. Pure decisions, no engine.

Every schedule is the same rule with other numbers; a synchronous round is the case in which everybody asked
must have answered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rayfed_kd.errors import RecipeError
from rayfed_kd.protocol import Method, UpdateRule
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.timing import (
    SCHEDULES,
    AsynchronousOptions,
    BufferedOptions,
    FedAsyncOptions,
    QuorumOptions,
    cohort_size,
    schedule_options,
)
from rayfed_kd.seeds import numpy_stream
from rayfed_kd.setting.devices import Devices


@dataclass(frozen=True)
class Schedule:
    """When a server asks whom, and when it has enough.

    Attributes:
        at_work: clients asked at the start of an update; with `refill`, clients at work at any time.
        refill: a client that answered is replaced at once; otherwise nobody is asked until the next update.
        enough: replies that end an update; it also ends when nobody is at work any more.
        least: replies that end it once the deadline is over.
        deadline_s: seconds after its start; infinite: there is none.
        drop_late: who is still at work when it ends is given up.
        max_staleness: older replies are dropped; None: none is.
        rule: how replies become the server's new vector.
        seed: the run's.
    """

    at_work: int
    seed: int
    refill: bool = False
    enough: int | None = None
    least: int = 1
    deadline_s: float = math.inf
    drop_late: bool = False
    max_staleness: int | None = None
    rule: UpdateRule = field(default_factory=UpdateRule)

    def wanted(self, flying: int, starting: bool) -> int:
        """How many clients to ask now, with `flying` at work; `starting`: an update begins."""
        if self.refill:
            return max(0, self.at_work - flying)
        return self.at_work if starting else 0

    def ended(self, replies: int, flying: int, late: bool) -> bool:
        """Whether an update has what it needs; `late`: its deadline is over."""
        enough = self.enough is not None and replies >= self.enough
        return enough or (late and replies >= self.least) or flying == 0

    def drawn(self, free: Sequence[int], count: int, draw: int) -> Sequence[int]:
        """`count` of the clients that are free, uniform without replacement, ascending.

        Args:
            free: ascending.
            draw: which draw of the run this is, from 1: with the seed it decides.
        """
        stream = numpy_stream(self.seed, "cohort", draw)
        chosen = stream.choice(len(free), min(count, len(free)), replace=False)
        return sorted(free[place] for place in chosen.tolist())


def make_schedule(recipe: Recipe, borders: Mapping[int, int] | None = None) -> Schedule:
    """The schedule that a recipe names.

    Args:
        borders: for its rule: length of a vector -> how many of its first elements are parameters.

    Raises: RecipeError
    """
    options, cohort, seed = schedule_options(recipe), cohort_size(recipe), recipe.seed
    borders = borders or {}
    if isinstance(options, QuorumOptions):
        least = math.ceil(options.min_fraction * cohort - 1e-9)
        return Schedule(
            at_work=min(recipe.partition.clients, math.ceil(cohort * (1 + options.over_selection) - 1e-9)),
            seed=seed,
            enough=least if options.deadline_s is None else cohort,
            least=least,
            deadline_s=math.inf if options.deadline_s is None else options.deadline_s,
            drop_late=options.late == "drop",
            rule=UpdateRule(
                options.staleness,
                options.normalisation,
                difference=options.update == "difference",
                borders=borders,
            ),
        )
    if isinstance(options, FedAsyncOptions):
        return Schedule(
            at_work=options.concurrency or cohort,
            seed=seed,
            refill=True,
            enough=1,
            max_staleness=options.max_staleness,
            rule=UpdateRule(options.staleness, "none", difference=False, server_lr=options.mixing),
        )
    if isinstance(options, BufferedOptions):
        rule = UpdateRule(
            options.staleness,
            options.normalisation,
            difference=options.update == "difference",
            server_lr=options.server_lr,
            borders=borders,
        )
        return Schedule(
            at_work=options.concurrency or cohort,
            seed=seed,
            refill=True,
            enough=options.buffer,
            max_staleness=options.max_staleness,
            rule=rule,
        )
    return Schedule(at_work=cohort, seed=seed)


def check_exchanges(recipe: Recipe, method: Method) -> None:  # type: ignore[type-arg]
    """Whether the method's exchanges fit the schedule: asked first, as no clock or option would help.

    Raises: RecipeError
    """
    kind, asked = SCHEDULES.get(recipe.schedule.name), recipe.schedule
    if kind is None or method.asynchronous:
        return
    if issubclass(kind, AsynchronousOptions):
        raise RecipeError(
            f"schedule.name = {asked.name!r}: {recipe.method.name}'s rounds have several exchanges; expected "
            "sync or quorum"
        )
    if issubclass(kind, QuorumOptions) and asked.options.get("late") == "next_round":
        raise RecipeError(
            f"schedule.late = 'next_round': {recipe.method.name}'s rounds have several exchanges, a late "
            "reply fits none of the next one's; expected drop"
        )


def check_schedule(recipe: Recipe, method: Method, devices: Devices | None, sizes: Sequence[int]) -> None:  # type: ignore[type-arg]
    """Refuses what can be known to fail before the first round, beside `check_exchanges`.

    Args:
        sizes: [K] training samples.
    Raises: RecipeError if nobody can meet the schedule's deadline.
    """
    options = schedule_options(recipe)
    if isinstance(options, QuorumOptions) and options.deadline_s is not None and devices is not None:
        work = [method.least_samples(size, recipe.local) for size in sizes]
        seconds = [devices.busy_s(client, 0, samples, 0) for client, samples in enumerate(work)]
        if min(seconds) > options.deadline_s:
            raise RecipeError(
                f"schedule.deadline_s = {options.deadline_s:g}: nobody can meet it, the fastest client needs "
                f"{min(seconds):.1f} s for its local epochs alone"
            )
