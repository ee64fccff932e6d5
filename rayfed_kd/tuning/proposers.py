"""Who says which coefficients the next trial has: a list drawn beforehand, or Optuna, which learns.

Neither keeps anything that a search could not make again: what a proposer must know after a restart is
told to it, so that nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rayfed_kd.errors import RecipeError
from rayfed_kd.seeds import derive
from rayfed_kd.tuning.spaces import Choice, Coefficients, Distribution, RandInt, Space, Uniform


class Proposer(Protocol):
    """Proposes coefficients, trial by trial."""

    def propose(self, number: int) -> Coefficients:
        """Those of trial `number`; called once for each, from 0 on."""
        ...

    def learn(self, number: int, value: float | None) -> None:
        """The trial is over with this value, the larger the better; None if it has none."""
        ...


class Listed:
    """Trials that are known before the first one starts: random and grid search."""

    def __init__(self, trials: Sequence[Coefficients]) -> None:
        self._trials = trials

    def propose(self, number: int) -> Coefficients:
        """As listed."""
        return self._trials[number]

    def learn(self, number: int, value: float | None) -> None:
        """Nothing to learn."""


class Learning:
    """Optuna's TPE (Bergstra et al. 2011): after ten random trials, near to what did well.

    Its randomness depends on (seed, number of the trial) alone, so that a search that was cut off goes on
    as it would have: it is told the trials that there were, and draws what it would have drawn.

    Args:
        space: what is searched.
        seed: the search's.
        begun: the trials that there were, from number 0 on.
    Raises: RecipeError if Optuna is not installed.
    """

    def __init__(self, space: Space, seed: int, begun: Sequence[Coefficients] = ()) -> None:
        optuna = imported_optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space, self._begun = space, begun
        self._distributions = {key: _of_optuna(optuna, values) for key, values in space.keys.items()}
        self._study = optuna.create_study(direction="maximize", sampler=_sampler(optuna, seed))
        self._asked: dict[int, Any] = {}

    def propose(self, number: int) -> Coefficients:
        """What there was, else what Optuna says."""
        if number < len(self._begun):
            self._study.enqueue_trial(
                {key: self._to_optuna(key, value) for key, value in self._begun[number].items()}
            )
        self._asked[number] = self._study.ask(self._distributions)
        params = self._asked[number].params
        return {key: self._from_optuna(key, params[key]) for key in self._space.keys}

    def learn(self, number: int, value: float | None) -> None:
        """Tells the study."""
        if value is None:
            self._study.tell(self._asked[number], state=imported_optuna().trial.TrialState.FAIL)
        else:
            self._study.tell(self._asked[number], value)

    def _to_optuna(self, key: str, value: Any) -> Any:
        values = self._space.keys[key]
        return values.values.index(value) if isinstance(values, Choice) else value

    def _from_optuna(self, key: str, value: Any) -> Any:
        values = self._space.keys[key]
        return values.values[value] if isinstance(values, Choice) else value


def imported_optuna() -> Any:
    """Optuna.

    Raises: RecipeError if it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise RecipeError(
            f"--search optuna: Optuna cannot be imported ({error}); pip install -e '.[tune]' in the clone "
            "brings it"
        ) from None
    return optuna


def _of_optuna(optuna: Any, values: Distribution) -> Any:
    """The same values in Optuna's terms; a choice by its place, as Optuna takes plain values only."""
    if isinstance(values, Uniform):
        return optuna.distributions.FloatDistribution(values.low, values.high, log=values.logarithmic)
    if isinstance(values, RandInt):
        return optuna.distributions.IntDistribution(values.low, values.high)
    assert isinstance(values, Choice)
    return optuna.distributions.CategoricalDistribution(range(len(values.values)))


def _sampler(optuna: Any, seed: int) -> Any:
    class ByNumber(optuna.samplers.BaseSampler):  # type: ignore[misc]
        """A TPE sampler of its own for every trial, seeded by the trial's number."""

        def before_trial(self, study: Any, trial: Any) -> None:
            self._tpe = optuna.samplers.TPESampler(seed=derive(seed, "tune", "optuna", trial.number) % 2**32)

        def infer_relative_search_space(self, study: Any, trial: Any) -> Mapping[str, Any]:
            found: Mapping[str, Any] = self._tpe.infer_relative_search_space(study, trial)
            return found

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Mapping[str, Any]:
            found: Mapping[str, Any] = self._tpe.sample_relative(study, trial, search_space)
            return found

        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
            return self._tpe.sample_independent(study, trial, param_name, param_distribution)

    return ByNumber()
