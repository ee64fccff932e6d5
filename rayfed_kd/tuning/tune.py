"""`rayfed-kd tune`: a search's trials, each a run of its own that Ray Tune starts, watches and may stop."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfed_kd.errors import RayfedError, RecipeError
from rayfed_kd.experiment.preparation import Prepared, make_ready, method_location, prepare
from rayfed_kd.experiment.result import Event, Tell, read_summary
from rayfed_kd.experiment.running import run_prepared_on_ray
from rayfed_kd.recipe.loading import RecipeSource, load_recipe
from rayfed_kd.recipe.schema import Recipe

if TYPE_CHECKING:
    from cluster.ray_backend.placement import Plan
    from cluster.ray_backend.resources import Node
    from rayfed_kd.tuning.findings import Found
    from rayfed_kd.tuning.folder import Metric, SchedulerName, SearchFolder, SearchName
    from rayfed_kd.tuning.search import Search
    from rayfed_kd.tuning.spaces import Coefficients


def tune(
    recipe: RecipeSource,
    space: str | Path,
    overrides: Sequence[str] = (),
    *,
    samples: int | None = None,
    search: SearchName = "random",
    scheduler: SchedulerName = "asha",
    metric: str | None = None,
    concurrent: int | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    address: str | None = None,
    tell: Tell = lambda line: None,
) -> Found:
    """Searches a recipe's coefficients with Ray Tune; each trial is a run, all with the recipe's seed.

    Args:
        recipe, overrides: what every trial starts from.
        space, samples, search, scheduler, metric: as in rayfed_kd.tuning.search.Wanted.
        concurrent: trials at a time; None: as many as have room for a client actor and a server each.
        folder: where everything goes; None: runs/tune- and the recipe's name.
        resume: goes on with the search there.
        address: of a Ray cluster.
        tell: called with a line when a trial starts and ends.
    Raises: RecipeError or DataError before the first trial; RunError if no trial has a value.
    """
    asked = next((change for change in overrides if change.startswith("results.")), None)
    if asked is not None:
        raise RecipeError(f"override {asked!r}: a search gives each trial its folder; expected --folder")
    prepared = prepare(recipe, overrides)
    from rayfed_kd.tuning.search import Wanted, default_folder, ready_search

    name = prepared.recipe.method.name if isinstance(recipe, Mapping) else Path(recipe).stem
    wanted = Wanted(space, samples, search, scheduler, metric, folder or default_folder(name))
    ready = ready_search(prepared.setting, wanted, partial(accept_coefficients, prepared))
    try:
        import rayfed_kd.tuning.ray_tune  # noqa: F401
    except ImportError as error:
        raise RecipeError(
            f"tune: Ray Tune cannot be imported ({error}); pip install -e '.[tune]' in the clone brings what "
            "it needs"
        ) from None
    with ready.folder.claimed(ready.asked, resume=resume):
        _run_trials(ready, concurrent, address, tell)
    return ready.found()


def accept_coefficients(prepared: Prepared, coefficients: Coefficients) -> None:
    """Whether the recipe can be run with these coefficients; data and partition are made again if needed.

    Raises: RecipeError or DataError
    """
    from cluster.server.grouping import check_grouping
    from cluster.server.schedules import check_exchanges, check_schedule
    from rayfed_kd.setting.blueprint import check_names, make_method
    from rayfed_kd.tuning.spaces import overrides_of

    setting = prepared.setting
    changed = load_recipe(prepared.recipe.model_dump(), overrides_of(coefficients))
    given = ("data", "partition", "clock", "seed")
    if any(getattr(changed, key) != getattr(prepared.recipe, key) for key in given):
        make_ready(changed)
        return
    method = make_method(method_location(changed), changed.method)
    check_exchanges(changed, method)
    check_names(changed)
    replace(setting, recipe=changed, method=method).check()
    check_grouping(changed)
    check_schedule(changed, method, setting.devices, setting.partition.sizes.tolist())


def _run_trials(ready: Search, concurrent: int | None, address: str | None, tell: Tell) -> None:
    from cluster.ray_backend.machines import ray_nodes
    from cluster.ray_backend.placement import plan_hosts, rooms
    from cluster.ray_backend.session import RaySession
    from rayfed_kd.tuning.ray_tune import Terms, search

    recipe, proposer = ready.recipe, ready.proposer()
    with RaySession(recipe, address, concurrent or ready.trials) as session:
        session.ready()
        there = ray_nodes()
        at_a_time = min(ready.trials, concurrent or rooms(recipe, there))
        nodes = tuple(node.divided(at_a_time) for node in there)
        plan_hosts(recipe, nodes)
        terms = Terms(
            ready.trials,
            at_a_time,
            recipe.rounds,
            recipe.evaluation.every,
            ready.scheduler,
            recipe.faults.max_retries,
        )
        here, command = str(Path.cwd()), tuple(sys.argv)
        trial = _Trial(recipe.model_dump(), ready.folder, ready.metric, nodes, here, command)
        search(terms, ready.folder, proposer, trial, tell)


@dataclass(frozen=True)
class _Trial:
    """A trial's simulation, in the process that Ray Tune gives it.

    Attributes:
        recipe: what every trial starts from.
        folder: the search's.
        metric: what is reported.
        nodes: a trial's share of the cluster.
        here, command: where and as what the search was started.
    """

    recipe: Mapping[str, Any]
    folder: SearchFolder
    metric: Metric
    nodes: tuple[Node, ...]
    here: str
    command: tuple[str, ...]

    def plan(self, number: int, coefficients: Coefficients) -> Plan | None:
        """Its hosts; None if it is over, or cannot run, which `run` then says."""
        from cluster.ray_backend.placement import plan_hosts

        record = self.folder.record(number)
        if record is not None and record.over:
            return None
        try:
            return plan_hosts(self._resolved(number, coefficients), self.nodes)
        except RecipeError:
            return None

    def run(self, number: int, coefficients: Coefficients, report: Callable[[int, float], None]) -> None:
        """Runs it, or goes on with it; whatever was evaluated before is reported first.

        A trial that fails by itself leaves that in its record. Raised is only the loss of a process, after
        which Ray Tune runs it again.
        """
        from cluster.ray_backend.session import is_lost

        record = self.folder.record(number)
        assert record is not None
        known = self.folder.values(number, self.metric)
        if record.over:
            for point in known:
                if point[0] <= record.round:
                    report(*point)
            return
        # The last value only when the run has closed its books.
        due = [point for point in known if point[0] < self.recipe["rounds"]]
        for point in due:
            report(*point)
        reported = due[-1][0] if due else 0

        def on_event(event: Event) -> None:
            value = self.metric.value(event["metrics"])
            if value is not None and reported < event["round"] < self.recipe["rounds"]:
                report(event["round"], value)

        try:
            self._simulate(number, coefficients, on_event)
        except Exception as error:
            if is_lost(error):
                raise
            known = self.folder.values(number, self.metric)
            said = str(error) if isinstance(error, RayfedError) else f"{type(error).__name__}: {error}"
            last = known[-1][0] if known else 0
            self.folder.write(replace(record, status="failed", round=last, error=said))
            return
        report(*self.folder.values(number, self.metric)[-1])

    def _simulate(self, number: int, coefficients: Coefficients, on_event: Callable[[Event], None]) -> None:
        os.chdir(self.here)  # Ray Tune changes it; a recipe's paths are meant from there
        sys.argv[:] = self.command
        folder = self.folder.trial(number)
        self.folder.free(number)
        if read_summary(folder).get("status") == "finished":
            return
        recipe = self._resolved(number, coefficients)
        begun, plan = (folder / "config.yaml").is_file(), self.plan(number, coefficients)
        run_prepared_on_ray(make_ready(recipe), on_event, plan=plan, resume=begun)

    def _resolved(self, number: int, coefficients: Coefficients) -> Recipe:
        from rayfed_kd.tuning.spaces import overrides_of

        folder = json.dumps(str(self.folder.trial(number)))
        return load_recipe(self.recipe, [*overrides_of(coefficients), f"results.folder={folder}"])
