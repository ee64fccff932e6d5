"""Which clients' steps run together as one batched program. Groups follow client order, never hosts.

`local.vectorise: n` puts up to n clients of one architecture into a group. `by_shape`, the default, does so
where clients' training is tiny by the shapes of data and model. `auto` runs the first exchange of each step
both ways before it begins, as observations that change nothing, and keeps the faster way. The decision is
stored in the run's folder, so that a resumed run forms the same groups and gives the same bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from cluster.engine.calls import StepCall, StepFacts, StepResult
from cluster.engine.interface import Engine
from rayfed_kd.errors import DataError, RecipeError, naming, shortened
from rayfed_kd.files import atomic_write
from rayfed_kd.recipe.yaml_documents import read_yaml_file, yaml_text
from rayfed_kd.setting.modules.tiny_training import is_tiny
from rayfed_kd.setting.setting import Setting

# What `auto` measures: groups of at most MOST clients, and at most about FEW single clients on each host.
MOST, FEW = 64, 16
TRIES, PATIENCE_S = 5, 1.0  # measurements of each way, and the seconds after which no further one begins
WORTH = 0.9  # groups are chosen only if they take at most this share of the plain loop's time
BY_SHAPE = 25  # clients in a group by shape; on two cores larger groups gain little more
FILE = "vectorise.yaml"


@dataclass(frozen=True)
class Decision:
    """How many clients run a step as one group.

    Attributes:
        together: most clients in a group; 1: each trains alone.
        plain_ms, together_ms: milliseconds per client that the server waited; None: not measured.
        why: the reason, for the user.
    """

    together: int
    plain_ms: float | None = None
    together_ms: float | None = None
    why: str = ""


class Grouping:
    """Forms the groups of clients that train together.

    Args:
        setting: with the recipe's `local.vectorise` and the clients' architectures.
        engine: runs the measurements of `auto`.
        folder: the run's folder, which keeps the decisions; None: they stay in memory.
        tell: called with each line that the user should read.
        clock: gives seconds, for the measurements.
    Raises: RecipeError if the engine cannot sum replies and the recipe asks for it.
    """

    def __init__(
        self,
        setting: Setting,
        engine: Engine,
        folder: Path | None = None,
        tell: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._setting, self._engine, self._tell = setting, engine, tell
        self._path = None if folder is None else folder / FILE
        self._decided: dict[str, Decision] = {}
        self._said: set[str] = set()
        reason = _obstacle(setting)
        self._hindered = reason is not None
        most = setting.recipe.local.sum_replies
        if most != "off" and not hasattr(engine, "submit_summed"):
            raise RecipeError(
                f"local.sum_replies = {most}: the engine {type(engine).__name__} has no `submit_summed`, "
                "which cluster/engine/interface.py describes; expected off, or another engine"
            )
        self._in_vain = False  # whether groups by shape trained one by one
        if reason is not None and setting.recipe.local.vectorise not in ("off", "by_shape"):
            tell(f"local.vectorise: each client by itself: {reason}")
        if self._path is not None and self._path.is_file():
            self._decided = _read_decisions(self._path)

    def groups(self, calls: Sequence[StepCall]) -> list[list[int]]:
        """Divide an exchange's calls into groups.

        Args:
            calls: the exchange's calls, in client order.
        Returns: places in `calls`, group by group; a group of one is a plain step.
        """
        return self._groups_of(calls, self._size(calls))

    def jobs(self, calls: Sequence[StepCall]) -> Iterator[tuple[list[int], list[int]]]:
        """Divide an exchange's calls into jobs, each for one host: groups, or all whose replies it sums.

        `local.sum_replies` calls in a row are summed, in the last job perhaps fewer. Groups lie within jobs.

        Args:
            calls: the exchange's calls, in client order.
        Returns: for each job places in `calls`, group by group, and the groups' sizes if its replies are
            summed; else no sizes.
        """
        most = self._setting.recipe.local.sum_replies
        if most == "off":
            yield from ((places, []) for places in self.groups(calls))
            return
        size = self._size(calls)
        for start in range(0, len(calls), most):
            groups = self._groups_of(calls[start : start + most], size)
            yield [start + place for places in groups for place in places], [len(one) for one in groups]

    def _size(self, calls: Sequence[StepCall]) -> int:
        """Most clients in a group."""
        size = self._setting.recipe.local.vectorise
        if size == "off" or len(calls) < 2 or self._hindered:
            return 1
        if size == "by_shape":
            return BY_SHAPE if self._is_tiny and not self._in_vain else 1
        if size == "auto":
            return self._decision(calls, max(self._alike(calls).values(), key=len)).together
        return size

    @cached_property
    def _is_tiny(self) -> bool:
        setting = self._setting
        if setting.recipe.local.compile:
            return False  # torch.vmap takes no compiled model; a recipe that asks for both is refused
        return is_tiny(setting.recipe.local, setting.partition.sizes, setting.builders)

    def _groups_of(self, calls: Sequence[StepCall], size: int) -> list[list[int]]:
        if size == 1:
            return [[place] for place in range(len(calls))]
        groups = [part for places in self._alike(calls).values() for part in _parts(places, size)]
        # Groups start in the order of their first clients, also with several architectures.
        return sorted(groups)

    def note(self, facts: Sequence[StepFacts]) -> None:
        """Tell once how many of a round's steps ran together, and each reason why others did not."""
        # None marks a step that was not in a group; "" one whose epochs ran with the others'.
        grouped = [one.alone for one in facts if one.alone is not None]
        if not grouped:
            return
        if self._setting.recipe.local.vectorise == "by_shape":
            # Nobody asked for groups, so nobody need hear why there are none. The same bits come of clients
            # that are not in a group, and all hosts share them.
            self._in_vain = "" not in grouped
            return
        lines = {f"local.vectorise: clients train one by one in spite of it: {why}" for why in grouped if why}
        if not self._said:
            together = grouped.count("")
            self._tell(f"local.vectorise: {together} of {len(facts)} steps of this round ran together")
        for line in sorted(lines - self._said):
            self._tell(line)
        self._said |= lines | {""}  # "" marks the first line

    def _alike(self, calls: Sequence[StepCall]) -> Mapping[str, list[int]]:
        """Architecture -> places of its clients' calls, in client order."""
        places_by_model: dict[str, list[int]] = {}
        for place, call in enumerate(calls):
            name = self._setting.architectures.of_client(call.facts.client)
            places_by_model.setdefault(name, []).append(place)
        return places_by_model

    def _decision(self, calls: Sequence[StepCall], alike: Sequence[int]) -> Decision:
        step = calls[0].step
        if step not in self._decided:
            # On the most common architecture; the size found then holds for all of them.
            decision = self._decided[step] = self._measured([calls[place] for place in alike])
            self._write()
            self._tell(f"local.vectorise: {step}: {decision.why}")
        return self._decided[step]

    def _measured(self, calls: Sequence[StepCall]) -> Decision:
        # About one group for each host, or more where these would be larger than MOST.
        size = min(MOST, math.ceil(len(calls) / self._engine.hosts))
        if size < 2:
            return Decision(1, why="one client at a time and host: there is nothing to group")
        looks = [replace(call, observing=True) for call in calls]
        # Every stride-th client, so that the few are of the whole cohort, and each host gets up to FEW.
        stride = math.ceil(len(looks) / (FEW * self._engine.hosts))
        few = [[look] for look in looks[::stride]]
        groups = [[looks[place] for place in part] for part in _parts(range(len(looks)), size)]
        results = self._run(groups)[1]  # not timed: the first run builds modules and fills caches
        alone = [reason for result in results if (reason := result.facts.alone)]
        if len(alone) == len(results):
            return Decision(1, why=f"each client by itself: {alone[0]}")
        plain_ms, together_ms = self._least(few), self._least(groups)
        times = f"{together_ms:.2f} ms a client in groups of {size}, {plain_ms:.2f} ms alone"
        if together_ms > WORTH * plain_ms:
            return Decision(1, plain_ms, together_ms, f"each client by itself: {times}")
        return Decision(size, plain_ms, together_ms, f"{size} clients together: {times}")

    def _least(self, groups: Sequence[Sequence[StepCall]]) -> float:
        """The least of a few measurements, as other load on the machine can only add time."""
        began, milliseconds = self._clock(), [self._run(groups)[0]]
        while len(milliseconds) < TRIES and self._clock() - began < PATIENCE_S:
            milliseconds.append(self._run(groups)[0])
        return min(milliseconds)

    def _run(self, groups: Sequence[Sequence[StepCall]]) -> tuple[float, list[StepResult]]:
        """Milliseconds per client that the server waits for these groups, and their results."""
        started = self._clock()
        futures = [future for group in groups for future in self._engine.submit(group)]
        results = [self._engine.result(future) for future in futures]
        return 1000 * (self._clock() - started) / len(results), results

    def _write(self) -> None:
        if self._path is not None:
            decisions = {step: asdict(decision) for step, decision in self._decided.items()}
            text = "# What local.vectorise: auto measured and decided; a resumed run goes by it.\n"
            atomic_write(self._path, text + yaml_text(decisions))


def _read_decisions(path: Path) -> dict[str, Decision]:
    """What an earlier process of the run decided; without it a resumed run might give other bits.

    Raises: DataError if the file is damaged.
    """
    try:
        with naming(path):
            stored = read_yaml_file(path, FILE)
            return TypeAdapter(dict[str, Decision]).validate_python(stored)
    except (RecipeError, ValidationError) as error:
        raise DataError(
            f"{path} is damaged, and without it the run cannot go on with the same bits: "
            f"{shortened(' '.join(str(error).split()), 300)}"
        ) from None


def check_grouping(setting: Setting) -> None:
    """Refuse a number as `local.vectorise` where the schedule or the placement allows no groups.

    Raises: RecipeError
    """
    size, reason = setting.recipe.local.vectorise, _obstacle(setting)
    if reason is not None and isinstance(size, int):
        raise RecipeError(f"local.vectorise = {size}: {reason}; expected off, by_shape or auto")


def _obstacle(setting: Setting) -> str | None:
    """Why this schedule or placement allows no groups; None if it does."""
    name, placement = setting.recipe.schedule.name, setting.recipe.placement
    if setting.schedule.asynchronous:
        return f"schedule.name = {name!r} asks clients one at a time"
    if not setting.schedule.drops_late:
        return (
            f"schedule.name = {name!r} keeps late replies, whose clients are asked again alone after a crash"
        )
    if placement.clients_per_actor == 1:
        return "placement.clients_per_actor = 1: a client's own actor runs nobody else"
    if placement.overrides:
        return "placement.overrides gives some clients hosts of their own, and a group has one host"
    return None


def _parts(places: Sequence[int], most: int) -> list[list[int]]:
    """Split `places`, in order, into as few parts of at most `most` as possible, of about equal size."""
    count = math.ceil(len(places) / most)
    cuts = [len(places) * part // count for part in range(count + 1)]
    return [list(places[start:stop]) for start, stop in pairwise(cuts)]
