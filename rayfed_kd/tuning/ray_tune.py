"""Run a search's trials on Ray Tune, each in a placement group of its own; a scheduler may stop some early.

Nothing that Ray Tune writes is read back: `Tuner.restore` would unpickle, needs a snapshot that a search
killed early has not, takes no more trials, and knows neither ASHA's rungs nor what was reported after the
snapshot (Ray 2.60). A resumed search is the same search again, in which trials that are over report again
what stands in their tables.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from rayfed_kd.cluster.ray_backend.placement import (  # before Ray: the room sets where Ray listens
    Plan,
    bundles,
)

# isort: split
from ray import tune
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch

from rayfed_kd.cluster.ray_backend.private_ray import set_variables
from rayfed_kd.experiment.result import OnEvent, Tell
from rayfed_kd.recipe.seeds import derive
from rayfed_kd.results.console import Work
from rayfed_kd.results.telling import Event
from rayfed_kd.tuning.search_folder import Status, TrialRecord
from rayfed_kd.tuning.search_setup import Search
from rayfed_kd.tuning.space import Coefficients, Distribution, Space, coefficient_text
from rayfed_kd.tuning.trial import TrialRun

VALUE, ROUND, EVENT = "value", "round", "event"  # what a trial reports to Ray Tune
TUNE_FOLDER = "ray-tune-scratch"  # what Ray Tune writes, removed afterwards; no folder of the user's
# ASHA (Li et al. 2020): a third goes on from each rung; rungs at rounds / 9 and rounds / 3, evaluated ones.
REDUCTION, RUNGS = 3, 2
QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends a search as it ends a run
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial may fail before it has a value
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "RAY_AIR_NEW_OUTPUT": "0",  # the newer output prints a last table even with `verbose=0`
}


def run_trials(
    trial_run: TrialRun, at_a_time: int, tell: Tell, work: Work | None = None, on_event: OnEvent | None = None
) -> None:
    """Run all trials on the Ray that this process is connected to; their records say what came of them.

    Args:
        trial_run: runs one trial, in the process that Ray Tune gives it; its search's folder is claimed by
            this process.
        at_a_time: how many trials run at a time.
        tell: called with a line when a trial starts and ends.
        work: is kept up with how far each trial is.
        on_event: called with the event of every evaluated round.
    """
    search = trial_run.search
    # A killed search leaves this folder, and Ray Tune would add to what is in it.
    tune_folder = search.folder.path / TUNE_FOLDER
    shutil.rmtree(tune_folder, ignore_errors=True)
    tuner = tune.Tuner(
        tune.with_resources(partial(_trial, trial_run), partial(_placement, trial_run)),
        tune_config=tune.TuneConfig(
            metric=VALUE,
            mode="max",
            num_samples=search.trials,
            max_concurrent_trials=at_a_time,
            search_alg=Proposals(search, tell),
            scheduler=_scheduler(search),
            trial_name_creator=_trial_name,
            trial_dirname_creator=_trial_name,
        ),
        run_config=tune.RunConfig(
            name=TUNE_FOLDER,
            storage_path=str(search.folder.path),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=search.recipe.faults.max_retries),
            callbacks=[Recorder(search, tell, work or Work())],
            stop=on_event and Listener(on_event),
        ),
    )
    with _quiet_ray_tune():
        tuner.fit()
    shutil.rmtree(tune_folder, ignore_errors=True)


@contextmanager
def _quiet_ray_tune() -> Iterator[None]:
    """Keep Ray Tune from tables, log files and a signal handler; `Recorder` tells of an error."""
    logger = logging.getLogger("ray.tune")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with set_variables(QUIET):
            yield
    finally:
        logger.setLevel(level)


def _trial(trial_run: TrialRun, config: Mapping[str, Any]) -> None:
    def report(round_index: int, value: float, event: Event | None) -> None:
        tune.report({ROUND: round_index, VALUE: value, EVENT: event})

    trial_run.run(config["number"], config["coefficients"], report)


def _placement(trial_run: TrialRun, config: Mapping[str, Any]) -> Any:
    return trial_placement(trial_run.plan(config["number"], config["coefficients"]))


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


def _scheduler(search: Search) -> Any:
    if search.settings.scheduler == "fifo":
        return FIFOScheduler()  # type: ignore[no-untyped-call]
    rounds = search.recipe.rounds
    # The first rung must be an evaluated round: a trial has no value before.
    grace = min(rounds + 1, max(search.recipe.evaluation.every, -(-rounds // REDUCTION**RUNGS)))
    # max_t lies above every reported round: the run ends by itself, and has written its summary by then.
    return ASHAScheduler(time_attr=ROUND, max_t=rounds + 1, grace_period=grace, reduction_factor=REDUCTION)


def _trial_name(trial: Any) -> str:
    return f"{trial.config['number']:05d}"


def optuna_search(space: Space, seed: int, earlier: Sequence[Coefficients] = ()) -> OptunaSearch:
    """Optuna's TPE (Bergstra et al. 2011): after ten random trials, near to what did well.

    Its randomness depends on (seed, number of the trial) alone. A search that was cut off goes on as it would
    have: it proposes the trials that began before, and draws what it would have drawn. A choice is proposed
    by its place, as Optuna takes plain values only.

    Args:
        space: what is searched.
        seed: the search's seed.
        earlier: the coefficients of the trials that began before, from number 0 on.
    """
    import optuna

    class ByNumber(optuna.samplers.TPESampler):
        """Begun anew for every trial: one stream for all would start again when the search is resumed."""

        def before_trial(self, study: Any, trial: Any) -> None:
            # Modulo 2^32: Optuna seeds a numpy RandomState, which takes 32 bits.
            super().__init__(seed=derive(seed, "tune", "optuna", trial.number) % 2**32)

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    keys = space.distributions
    return OptunaSearch(
        {key: _to_optuna(optuna.distributions, values) for key, values in keys.items()},
        metric=VALUE,
        mode="max",
        sampler=ByNumber(),
        points_to_evaluate=[{key: keys[key].place(value) for key, value in one.items()} for one in earlier],
    )


def _to_optuna(kinds: Any, values: Distribution) -> Any:
    """The same distribution in Optuna's terms."""
    if values.kind == "choice":
        return kinds.CategoricalDistribution(range(len(values.values)))
    if values.kind == "randint":
        return kinds.IntDistribution(*values.values)
    return kinds.FloatDistribution(*values.values, log=values.kind == "loguniform")


class _DriverSide:
    """What Ray Tune may pickle in this process, without its listeners: a terminal has locks."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("tell", "work", "on_event")}


class Listener(_DriverSide):
    """Passes on trials' events, each once; StopIteration stops the trial.

    When a trial's function returns, Ray Tune calls this again with the trial's last result, which is empty
    if the trial never reported. A run that its recipe's `stop` has ended reports its last round twice.

    Args:
        on_event: called with each event that is new.
    """

    def __init__(self, on_event: OnEvent) -> None:
        self.on_event, self._told = on_event, dict[str, int]()  # trial -> the last round that was told

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        event = result.get(EVENT)
        if event is not None and self._told.get(trial_id) != event["round"]:
            self._told[trial_id] = event["round"]
            try:
                self.on_event(event)
            except StopIteration:
                return True
        return False


class Proposals(_DriverSide, Searcher):
    """Which coefficients the next trial has; it writes a trial's record when the trial begins.

    Args:
        search: its list of coefficients, or what Optuna searches.
        tell: called with a line when a trial starts.
    """

    def __init__(self, search: Search, tell: Tell) -> None:
        super().__init__(metric=VALUE, mode="max")
        self.search, self.tell = search, tell
        self._numbers: dict[str, int] = {}
        self._best: dict[str, float] = {}
        self._optuna: OptunaSearch | None = None
        if search.settings.search == "optuna":
            begun = [record.coefficients for record in search.folder.records()]
            self._optuna = optuna_search(search.space, search.recipe.seed, begun)

    def suggest(self, trial_id: str) -> dict[str, Any]:
        number = self._numbers[trial_id] = len(self._numbers)
        coefficients = self._proposed(trial_id)
        folder = self.search.folder
        record = folder.record(number)
        if record is None:
            folder.write_record(TrialRecord(number, coefficients))
        if record is None or not record.over:
            texts = [f"{key} {coefficient_text(value)}" for key, value in coefficients.items()]
            self.tell(f"trial {number}: {'starts' if record is None else 'goes on'}  {'  '.join(texts)}")
        return {"number": number, "coefficients": coefficients}

    def _proposed(self, trial_id: str) -> dict[str, Any]:
        if self._optuna is None:
            return dict(self.search.listed[self._numbers[trial_id]])
        params = self._optuna.suggest(trial_id)
        assert params is not None  # only a finite list of points may be used up
        return {
            key: values.values[params[key]] if values.kind == "choice" else params[key]
            for key, values in self.search.space.distributions.items()
        }

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        if VALUE in result:
            # The largest so far and not the last: trials are ranked by it when the search is over.
            self._best[trial_id] = max(result[VALUE], self._best.get(trial_id, result[VALUE]))

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        self.on_trial_result(trial_id, result or {})  # Ray Tune may give the last result here alone
        if self._optuna is None:
            return
        record, best = self.search.folder.record(self._numbers[trial_id]), self._best.get(trial_id)
        failed = error or best is None or (record is not None and record.status == "failed")
        self._optuna.on_trial_complete(trial_id, None if failed else {VALUE: best}, error=failed)

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: a resumed search is the same search again, see the module."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing, as nothing was saved."""


class Recorder(_DriverSide, TrialProgressCallback):
    """Writes the record of a trial that is stopped, or whose process is lost; others have written their own.

    It takes the place of Ray Tune's progress, which prints `completed` for a trial that failed at once.

    Args:
        search: whose trials run.
        tell: called with a line when a trial ends.
        work: is kept up with how far each trial is.
    """

    def __init__(self, search: Search, tell: Tell, work: Work) -> None:
        self.search, self.tell, self.work = search, tell, work
        for number in range(search.trials):
            work.expect(f"trial {number}", search.recipe.rounds)
        work.phase = "starting the trials"
        # Noted before the search begins: trials that end in it have records that are over, too, and are told.
        self._over_before = {record.number for record in search.folder.records() if record.over}

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.work.start(f"trial {trial.config['number']}")

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        self.work.round(f"trial {trial.config['number']}", result[ROUND])

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self._note_end(trial)

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self._note_end(trial, f"its process was lost: {trial.get_error()}")

    def _note_end(self, trial: Any, error: str | None = None) -> None:
        number, last = trial.config["number"], trial.last_result or {}
        self.work.end(f"trial {number}")
        if number in self._over_before:  # it has only reported again, for the scheduler and the searcher
            return
        record = self.search.folder.record(number)
        assert record is not None
        # A trial that made all its rounds, or failed by itself, has written its record.
        if not record.over:
            status: Status = "failed" if error else "stopped"
            record = replace(record, status=status, round=last.get(ROUND, 0), error=error)
            self.search.folder.write_record(record)
        value = f", {self.search.metric.told(last[VALUE])}" if VALUE in last else ""
        why = f": {record.error}" if record.error else ""
        self.tell(f"trial {number}: {record.status} after round {record.round}{value}{why}")
