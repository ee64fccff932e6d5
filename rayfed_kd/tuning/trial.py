"""One trial's simulation, in the process that Ray Tune gives it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rayfed_kd.errors import RayfedError, RecipeError, RunError
from rayfed_kd.experiment.engines import OnRay
from rayfed_kd.experiment.preparation import make_ready
from rayfed_kd.experiment.result import Tell, read_summary
from rayfed_kd.experiment.running import run_prepared
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.overrides import override_lines
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.results.folder import changed_packages
from rayfed_kd.results.recorder import write_end
from rayfed_kd.results.schemas import CONFIG
from rayfed_kd.results.summary import is_finished
from rayfed_kd.results.telling import Event
from rayfed_kd.results.trackers.tracking import Trackers
from rayfed_kd.tuning.search_folder import TrialRecord
from rayfed_kd.tuning.search_setup import Search
from rayfed_kd.tuning.space import Coefficients, coefficient_overrides

if TYPE_CHECKING:
    from rayfed_kd.cluster.ray_backend.placement import Plan
    from rayfed_kd.cluster.ray_backend.resources import Node

Report = Callable[[int, float, Event | None], None]  # (round, value, the round's event if it is new)


@dataclass(frozen=True)
class TrialRun:
    """Runs any trial of one search; it crosses to the trial's process.

    Attributes:
        search: whose trials it runs.
        nodes: a trial's share of the cluster.
        working_folder: where the search was started; a recipe's relative paths are meant from there.
        command: the words with which the search was started, noted in each trial's environment.json.
    """

    search: Search
    nodes: tuple[Node, ...]
    working_folder: str
    command: tuple[str, ...]

    def plan(self, number: int, coefficients: Coefficients) -> Plan | None:
        """The hosts that a trial needs.

        Args:
            number: the trial's number.
            coefficients: recipe key -> value.

        Returns: None if the trial is over, or cannot be placed; `run` then reports the error.
        """
        record = self.search.folder.record(number)
        if record is not None and record.over:
            return None
        try:
            return self.hosts(self._trial_recipe(number, coefficients))
        except RecipeError:
            return None

    def hosts(self, recipe: Recipe) -> Plan:
        """The hosts of a recipe on a trial's share of the cluster.

        Raises: RecipeError if they have no room.
        """
        from rayfed_kd.cluster.ray_backend.placement import plan_hosts
        from rayfed_kd.timing.reading import read_timing

        return plan_hosts(recipe, read_timing(recipe).schedule.concurrency, self.nodes)

    def run(self, number: int, coefficients: Coefficients, report: Report) -> None:
        """Run a trial, or go on with it; what was evaluated before is reported first.

        A trial that fails by itself notes that in its record, and nothing is raised. Only the loss of a
        process is raised: Ray Tune then runs the trial again.

        Args:
            number: the trial's number; its record exists.
            coefficients: recipe key -> value.
            report: called with (round, value, event) of every evaluation, in order; the event of one that an
                earlier process made is None.
        """
        from rayfed_kd.cluster.ray_backend.remote_run import is_lost

        folder, metric, rounds = self.search.folder, self.search.metric, self.search.recipe.rounds
        record = folder.record(number)
        assert record is not None  # written when the trial was proposed, before this process began
        # The last round's value is reported at the very end: Ray Tune may end this process when it comes,
        # and the run must have written its summary by then.
        last_round = record.round if record.over else rounds - 1
        earlier = [point for point in folder.values(number, metric) if point[0] <= last_round]
        for point in earlier:
            report(*point, None)
        if record.over:
            return
        last_reported, last_event = (earlier[-1][0] if earlier else 0), list[Event | None]([None])

        def on_event(event: Event) -> None:
            event["run"], last_event[:] = f"trial {number}", [event]
            value = metric.value(event["metrics"])
            if value is not None and last_reported < event["round"] < rounds:
                report(event["round"], value, event)

        try:
            self._simulate(number, coefficients, on_event)
            values = folder.values(number, metric)
            if not values:
                raise RunError(f"no evaluation has a finite {metric}")
        except Exception as error:
            if is_lost(error):
                raise
            self._note_failure(record, error)
            return
        # Noted here: an own metric may have no value after the last round, which then is not reported.
        done = read_summary(folder.trial(number))["rounds"]
        folder.write_record(replace(record, status="finished", round=done))
        report(*values[-1], *last_event)

    def end_stopped(self, tell: Tell) -> None:
        """Give stopped trials, whose processes Ray Tune has ended, a summary and their trackers' end.

        Args:
            tell: called with a line when a tracker fails.
        """
        for record in self.search.folder.records():
            if record.status != "stopped":
                continue
            folder = self.search.folder.trial(record.number)
            before = read_summary(folder)  # of an earlier end, if the trial was tried again
            if before.get("status", "failed") == "failed" or before["rounds"] < record.round:
                self.search.folder.wait_for_trial(record.number)
                recipe = load_recipe(folder / CONFIG)
                write_end(folder, recipe, "interrupted", Trackers(folder, recipe, tell))

    def _note_failure(self, record: TrialRecord, error: Exception) -> None:
        folder = self.search.folder
        values = folder.values(record.number, self.search.metric)
        message = str(error) if isinstance(error, RayfedError) else f"{type(error).__name__}: {error}"
        last_round = values[-1][0] if values else 0
        folder.write_record(replace(record, status="failed", round=last_round, error=message))

    def _simulate(self, number: int, coefficients: Coefficients, on_event: Callable[[Event], None]) -> None:
        # Ray Tune has changed it, and relative paths of the recipe are meant from there.
        os.chdir(self.working_folder)
        sys.argv[:] = self.command
        folder = self.search.folder.trial(number)
        self.search.folder.wait_for_trial(number)
        if is_finished(read_summary(folder)):
            return  # the search was cut off before the record said so
        prepared = make_ready(self._trial_recipe(number, coefficients))
        # The actors of `plan`, for which Ray Tune has placed this trial.
        plan = self.hosts(prepared.recipe)
        resumed = (folder / "config.yaml").is_file()
        if resumed and (differing := changed_packages(folder)):
            raise RunError(f"it was begun with {'; '.join(differing)}; remove {folder} to run it anew")
        run_prepared(prepared, OnRay(plan=plan), on_event, resume=resumed, restart=True)

    def _trial_recipe(self, number: int, coefficients: Coefficients) -> Recipe:
        folder, group = self.search.folder.trial(number), self.search.folder.path.name
        results = override_lines({"results.folder": folder, "results.group": group})
        changes = [*coefficient_overrides(coefficients), *results]
        return load_recipe(self.search.recipe.model_dump(), changes)
