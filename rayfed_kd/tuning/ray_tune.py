"""Ray Tune: which trials run when, each in a placement group of its own, and which are stopped early.

Of what Tune writes nothing is read back. Its restore would unpickle, and brings back neither the rungs of
ASHA nor what was reported after its last snapshot (Ray 2.60); here a search that goes on is the same search
again, in which trials that are over report again what stands in their tables.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
from ray.tune.search import Searcher

from cluster.ray_backend.placement import Plan, bundles
from rayfed_kd.tuning.folder import Record, SchedulerName, SearchFolder, Status
from rayfed_kd.tuning.proposers import Proposer
from rayfed_kd.tuning.spaces import Coefficients, shown

VALUE, ROUND = "value", "round"
OWN = "tune"  # the folder of what Tune writes
# ASHA (Li et al. 2020): a third goes on from each rung; rungs at rounds / 9 and rounds / 3, evaluated ones.
REDUCTION, RUNGS = 3, 2

Report = Callable[[int, float], None]
Tell = Callable[[str], None]


class Simulate(Protocol):
    """One trial's simulation; crosses to the trial's process."""

    def plan(self, number: int, coefficients: Coefficients) -> Plan | None:
        """The hosts that it needs; None if there is nothing to compute."""
        ...

    def run(self, number: int, coefficients: Coefficients, report: Report) -> None:
        """Runs it, with (round, value) of every evaluation in order to `report`."""
        ...


@dataclass(frozen=True)
class Terms:
    """How a search is run.

    Attributes:
        trials: how many.
        at_a_time: how many at a time.
        rounds, every: of each trial's recipe: its rounds, and those between evaluations.
        scheduler: who stops trials early.
        retries: how often a trial whose process was lost goes on from its checkpoint.
    """

    trials: int
    at_a_time: int
    rounds: int
    every: int
    scheduler: SchedulerName
    retries: int


def search(terms: Terms, folder: SearchFolder, proposer: Proposer, simulate: Simulate, tell: Tell) -> None:
    """Runs all trials on the Ray that this process is connected to; their records say what came of them.

    Args:
        tell: called with a line when a trial starts and ends.
    """
    own = folder.path / OWN
    shutil.rmtree(own, ignore_errors=True)
    with _tune_as_we_want_it():
        _tuner(terms, folder, _Proposals(proposer, folder, tell), simulate, _Watch(terms, folder, tell)).fit()
    shutil.rmtree(own, ignore_errors=True)


def _tuner(
    terms: Terms, folder: SearchFolder, proposals: Searcher, simulate: Simulate, watch: tune.Callback
) -> Any:
    return tune.Tuner(
        _trainable(simulate),
        tune_config=tune.TuneConfig(
            metric=VALUE,
            mode="max",
            num_samples=terms.trials,
            max_concurrent_trials=terms.at_a_time,
            search_alg=proposals,
            scheduler=_scheduler(terms),
            trial_name_creator=_name,
            trial_dirname_creator=_name,
        ),
        run_config=tune.RunConfig(
            name=OWN,
            storage_path=str(folder.path),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=terms.retries),
            callbacks=[watch],
        ),
    )


@contextmanager
def _tune_as_we_want_it() -> Iterator[None]:
    """No tables, log files and signal handler of its own: Ctrl-C ends a search as it ends a run."""
    wanted = {
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "TUNE_DISABLE_SIGINT_HANDLER": "1",
        "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial may fail before it has a value
        "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
        "RAY_AIR_NEW_OUTPUT": "0",
    }
    logger, before = logging.getLogger("ray.tune"), dict(os.environ)
    level = logger.level
    os.environ |= wanted
    logger.setLevel(logging.CRITICAL)  # errors are told with their trial
    try:
        yield
    finally:
        logger.setLevel(level)
        for name in wanted:
            os.environ.pop(name)
            if name in before:
                os.environ[name] = before[name]


def _trainable(simulate: Simulate) -> Any:
    def trial(config: Mapping[str, Any]) -> None:
        def report(round_index: int, value: float) -> None:
            tune.report({ROUND: round_index, VALUE: value})

        simulate.run(config["number"], config["coefficients"], report)

    def resources(config: Mapping[str, Any]) -> Any:
        return _placement(simulate.plan(config["number"], config["coefficients"]))

    return tune.with_resources(trial, resources)


def _placement(plan: Plan | None) -> Any:
    """The trial's placement group: nothing for the function that waits, then the server and the hosts."""
    if plan is None or not (found := bundles(plan)).asked:
        # Tune wants something to be asked for; this is so little that it is always there.
        return tune.PlacementGroupFactory([{"CPU": 0.001}])
    return tune.PlacementGroupFactory(
        [{}, *found.asked], strategy=plan.strategy.upper(), bundle_label_selector=found.selectors
    )


def _scheduler(terms: Terms) -> Any:
    if terms.scheduler == "fifo":
        return FIFOScheduler()  # type: ignore[no-untyped-call]
    grace = max(terms.every, -(-terms.rounds // REDUCTION**RUNGS))
    # max_t above what is ever reported: a trial's last report ends nothing, the run closes its own books.
    return ASHAScheduler(
        time_attr=ROUND, max_t=terms.rounds + 1, grace_period=grace, reduction_factor=REDUCTION
    )


def _name(trial: Any) -> str:
    return f"{trial.config['number']:05d}"


class _Proposals(Searcher):
    """A proposer as Tune knows it. Writes a trial's record when the trial begins."""

    def __init__(self, proposer: Proposer, folder: SearchFolder, tell: Tell) -> None:
        super().__init__(metric=VALUE, mode="max")
        self._proposer, self._folder, self._tell = proposer, folder, tell
        self._numbers: dict[str, int] = {}
        self._best: dict[int, float] = {}

    def suggest(self, trial_id: str) -> dict[str, Any]:
        number = self._numbers[trial_id] = len(self._numbers)
        coefficients = dict(self._proposer.propose(number))
        record = self._folder.record(number)
        if record is None:
            self._folder.write(Record(number, coefficients))
        if record is None or not record.over:
            said = "  ".join(f"{key} {shown(value)}" for key, value in coefficients.items())
            self._tell(f"trial {number}: {'starts' if record is None else 'goes on'}  {said}")
        return {"number": number, "coefficients": coefficients}

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        self._keep(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        number = self._numbers[trial_id]
        self._keep(trial_id, result or {})
        record = self._folder.record(number)
        failed = error or (record is not None and record.status == "failed")
        self._proposer.learn(number, None if failed else self._best.get(number))

    def _keep(self, trial_id: str, result: Mapping[str, Any]) -> None:
        number = self._numbers[trial_id]
        if VALUE in result:
            self._best[number] = max(result[VALUE], self._best.get(number, result[VALUE]))

    def save(self, checkpoint_path: str) -> None:
        """Nothing: see the module."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing."""


@dataclass
class _Watch(tune.Callback):
    """Writes a trial's record when it is over. A trial that failed by itself has written its own."""

    terms: Terms
    folder: SearchFolder
    tell: Tell

    def __post_init__(self) -> None:
        self._over_before = {record.number for record in self.folder.records() if record.over}

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        round_index = (trial.last_result or {}).get(ROUND, 0)
        self._over(trial, "finished" if round_index >= self.terms.rounds else "stopped", round_index, None)

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        round_index = (trial.last_result or {}).get(ROUND, 0)
        self._over(trial, "failed", round_index, f"its process was lost: {trial.get_error()}")

    def _over(self, trial: Any, status: Status, round_index: int, error: str | None) -> None:
        number = trial.config["number"]
        if number in self._over_before:  # it has only reported again, for the scheduler and the proposer
            return
        record = self.folder.record(number)
        assert record is not None
        if not record.over:
            record = replace(record, status=status, round=round_index, error=error)
            self.folder.write(record)
        value = (trial.last_result or {}).get(VALUE)
        reached = "" if value is None else f", {100 * value:.2f} %"
        why = f": {record.error}" if record.error else ""
        self.tell(f"trial {number}: {record.status} after round {record.round}{reached}{why}")
