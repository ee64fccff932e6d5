"""Run a search's trials on Ray Tune, each in a placement group of its own; the scheduler may stop some early.

Nothing that Ray Tune writes is read back. Its restore would unpickle, and it brings back neither the rungs of
ASHA nor what was reported after its last snapshot (Ray 2.60). A resumed search is the same search again, in
which trials that are over report again what stands in their tables.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from cluster.ray_backend.placement import Plan, bundles  # before Ray: the room sets where Ray listens

# isort: split
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
from ray.tune.search import Searcher

from rayfed_kd.results.study_console import Work
from rayfed_kd.tuning.proposers import Proposer
from rayfed_kd.tuning.search_folder import SchedulerName, SearchFolder, Status, TrialRecord
from rayfed_kd.tuning.space import coefficient_text
from rayfed_kd.tuning.trial_run import TrialRun

VALUE, ROUND = "value", "round"  # what a trial reports to Ray Tune
TUNE_FOLDER = "tune"  # the folder of what Ray Tune writes, removed afterwards
# ASHA (Li et al. 2020): a third goes on from each rung; rungs at rounds / 9 and rounds / 3, evaluated ones.
REDUCTION, RUNGS = 3, 2

Tell = Callable[[str], None]


@dataclass(frozen=True)
class TrialLimits:
    """How many trials run, how long, and how often one is tried.

    Attributes:
        trials: how many trials there are.
        at_a_time: how many run at a time.
        rounds: rounds of each trial's recipe.
        evaluated_every: rounds between two evaluations.
        scheduler: asha stops trials that are behind, fifo lets every trial end.
        retries: how often a trial whose process was lost goes on from its checkpoint.
    """

    trials: int
    at_a_time: int
    rounds: int
    evaluated_every: int
    scheduler: SchedulerName
    retries: int


def run_trials(
    limits: TrialLimits,
    folder: SearchFolder,
    proposer: Proposer,
    trial_run: TrialRun,
    tell: Tell,
    work: Work | None = None,
) -> None:
    """Run all trials on the Ray that this process is connected to; their records say what came of them.

    Args:
        limits: how many trials, and how long.
        folder: the search's folder, claimed by this process.
        proposer: says which coefficients each trial has.
        trial_run: runs one trial, in the process that Ray Tune gives it.
        tell: called with a line when a trial starts and ends.
        work: is kept up with how far each trial is.
    """
    # A killed search leaves this folder, and Ray Tune would add to what is in it.
    tune_folder = folder.path / TUNE_FOLDER
    shutil.rmtree(tune_folder, ignore_errors=True)
    searcher = _ProposerSearcher(proposer, folder, tell)
    recorder = _TrialRecorder(limits, folder, tell, work or Work())
    with _quiet_ray_tune():
        _tuner(limits, folder, searcher, trial_run, recorder).fit()
    shutil.rmtree(tune_folder, ignore_errors=True)


def _tuner(
    limits: TrialLimits,
    folder: SearchFolder,
    searcher: Searcher,
    trial_run: TrialRun,
    recorder: tune.Callback,
) -> Any:
    return tune.Tuner(
        _trainable(trial_run),
        tune_config=tune.TuneConfig(
            metric=VALUE,
            mode="max",
            num_samples=limits.trials,
            max_concurrent_trials=limits.at_a_time,
            search_alg=searcher,
            scheduler=_scheduler(limits),
            trial_name_creator=_trial_name,
            trial_dirname_creator=_trial_name,
        ),
        run_config=tune.RunConfig(
            name=TUNE_FOLDER,
            storage_path=str(folder.path),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=limits.retries),
            callbacks=[recorder],
        ),
    )


@contextmanager
def _quiet_ray_tune() -> Iterator[None]:
    """Keep Ray Tune from tables, log files and a signal handler: Ctrl-C ends a search as it ends a run."""
    variables = {
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "TUNE_DISABLE_SIGINT_HANDLER": "1",
        "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial may fail before it has a value
        "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
        # Ray Tune's newer output prints a last table even with `verbose=0`.
        "RAY_AIR_NEW_OUTPUT": "0",
    }
    logger, before = logging.getLogger("ray.tune"), dict(os.environ)
    level = logger.level
    os.environ |= variables
    # `_TrialRecorder` tells of an error, with its trial.
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name in variables:
            os.environ.pop(name)
            if name in before:
                os.environ[name] = before[name]


def _trainable(trial_run: TrialRun) -> Any:
    def trial(config: Mapping[str, Any]) -> None:
        def report(round_index: int, value: float) -> None:
            tune.report({ROUND: round_index, VALUE: value})

        trial_run.run(config["number"], config["coefficients"], report)

    def resources(config: Mapping[str, Any]) -> Any:
        return trial_placement(trial_run.plan(config["number"], config["coefficients"]))

    return tune.with_resources(trial, resources)


def trial_placement(plan: Plan | None) -> Any:
    """A trial's placement group, as Ray Tune takes it.

    Args:
        plan: the trial's hosts; None if it computes nothing.

    Returns: a factory of a group whose first bundle is empty, for the function that waits; then a bundle for
        the server and one per host.
    """
    if plan is None or not (trial_bundles := bundles(plan)).requests:
        # Ray Tune refuses a trial without a demand; this is so little that it is always free.
        return tune.PlacementGroupFactory([{"CPU": 0.001}])
    return tune.PlacementGroupFactory(
        [{}, *trial_bundles.requests],
        strategy=plan.strategy.upper(),
        bundle_label_selector=trial_bundles.selectors,
    )


def _scheduler(limits: TrialLimits) -> Any:
    if limits.scheduler == "fifo":
        return FIFOScheduler()  # type: ignore[no-untyped-call]
    # The first rung must be an evaluated round: a trial has no value before.
    grace = max(limits.evaluated_every, -(-limits.rounds // REDUCTION**RUNGS))
    # max_t lies above every reported round: the run ends by itself, and has written its summary by then.
    return ASHAScheduler(
        time_attr=ROUND, max_t=limits.rounds + 1, grace_period=grace, reduction_factor=REDUCTION
    )


def _trial_name(trial: Any) -> str:
    return f"{trial.config['number']:05d}"


def _without_listeners(thing: Any) -> dict[str, Any]:
    """What Ray Tune may pickle of an object: a terminal has locks. It reads nothing back, see the module."""
    return {name: value for name, value in vars(thing).items() if name not in ("tell", "_tell", "work")}


class _ProposerSearcher(Searcher):
    """A proposer as Ray Tune knows it; it writes a trial's record when the trial begins."""

    def __init__(self, proposer: Proposer, folder: SearchFolder, tell: Tell) -> None:
        super().__init__(metric=VALUE, mode="max")
        self._proposer, self._folder, self._tell = proposer, folder, tell
        self._numbers: dict[str, int] = {}
        self._best: dict[int, float] = {}

    def __getstate__(self) -> dict[str, Any]:
        return _without_listeners(self)

    def suggest(self, trial_id: str) -> dict[str, Any]:
        number = self._numbers[trial_id] = len(self._numbers)
        coefficients = dict(self._proposer.propose(number))
        record = self._folder.record(number)
        if record is None:
            self._folder.write_record(TrialRecord(number, coefficients))
        if record is None or not record.over:
            texts = [f"{key} {coefficient_text(value)}" for key, value in coefficients.items()]
            self._tell(f"trial {number}: {'starts' if record is None else 'goes on'}  {'  '.join(texts)}")
        return {"number": number, "coefficients": coefficients}

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        self._note_best(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        number = self._numbers[trial_id]
        self._note_best(trial_id, result or {})  # Ray Tune may give the last result here alone
        record = self._folder.record(number)
        failed = error or (record is not None and record.status == "failed")
        self._proposer.learn(number, None if failed else self._best.get(number))

    def _note_best(self, trial_id: str, result: Mapping[str, Any]) -> None:
        number = self._numbers[trial_id]
        if VALUE in result:
            # The largest so far and not the last: trials are ranked by it when the search is over.
            self._best[number] = max(result[VALUE], self._best.get(number, result[VALUE]))

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: a resumed search is the same search again, see the module."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing, as nothing was saved."""


@dataclass
class _TrialRecorder(tune.Callback):
    """Writes a trial's record when the trial is over. A trial that failed by itself has written its own."""

    limits: TrialLimits
    folder: SearchFolder
    tell: Tell
    work: Work = field(default_factory=Work)

    def __post_init__(self) -> None:
        for number in range(self.limits.trials):
            self.work.expect(f"trial {number}", self.limits.rounds)
        self.work.phase = "starting the trials"
        # Noted before the search begins: trials that end in it have records that are over, too, and are told.
        self._over_before = {record.number for record in self.folder.records() if record.over}

    def __getstate__(self) -> dict[str, Any]:
        return _without_listeners(self)

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.work.start(f"trial {trial.config['number']}")

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        self.work.round(f"trial {trial.config['number']}", result[ROUND])

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        round_index = (trial.last_result or {}).get(ROUND, 0)
        self._note_end(
            trial, "finished" if round_index >= self.limits.rounds else "stopped", round_index, None
        )

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        round_index = (trial.last_result or {}).get(ROUND, 0)
        self._note_end(trial, "failed", round_index, f"its process was lost: {trial.get_error()}")

    def _note_end(self, trial: Any, status: Status, round_index: int, error: str | None) -> None:
        number = trial.config["number"]
        self.work.end(f"trial {number}")
        if number in self._over_before:  # it has only reported again, for the scheduler and the proposer
            return
        record = self.folder.record(number)
        assert record is not None
        # A trial that failed by itself has returned without an error, so Ray Tune takes it for complete.
        if not record.over:
            record = replace(record, status=status, round=round_index, error=error)
            self.folder.write_record(record)
        value = (trial.last_result or {}).get(VALUE)
        reached = "" if value is None else f", {100 * value:.2f} %"
        why = f": {record.error}" if record.error else ""
        self.tell(f"trial {number}: {record.status} after round {record.round}{reached}{why}")
