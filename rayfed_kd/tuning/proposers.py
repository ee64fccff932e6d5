"""Proposers: which coefficients the next trial has, drawn beforehand or learned by Optuna.

A proposer keeps nothing on disk. After a restart it is told what it must know, so nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rayfed_kd.errors import RecipeError
from rayfed_kd.seeds import derive
from rayfed_kd.tuning.distributions import Choice, Distribution, RandInt, Uniform
from rayfed_kd.tuning.space import Coefficients, Space


class Proposer(Protocol):
    """Proposes coefficients, trial by trial."""

    def propose(self, number: int) -> Coefficients:
        """Propose the coefficients of a trial; called once for each trial, from 0 on."""
        ...

    def learn(self, number: int, value: float | None) -> None:
        """Take note that a trial is over.

        Args:
            number: the trial's number.
            value: its largest value, the larger the better; None if it has none.
        """
        ...


class ListedProposer:
    """Proposes a list that is known before the first trial: random and grid search.

    Args:
        coefficients: one entry per trial.
    """

    def __init__(self, coefficients: Sequence[Coefficients]) -> None:
        self._coefficients = coefficients

    def propose(self, number: int) -> Coefficients:
        """The list's entry."""
        return self._coefficients[number]

    def learn(self, number: int, value: float | None) -> None:
        """Does nothing: the list does not depend on values."""


class OptunaProposer:
    """Optuna's TPE (Bergstra et al. 2011): after ten random trials, near to what did well.

    Its randomness depends on (seed, number of the trial) alone. A search that was cut off goes on as it would
    have: it is told the trials that began before, and draws what it would have drawn.

    Args:
        space: what is searched.
        seed: the search's seed.
        earlier: the coefficients of the trials that began before, from number 0 on.

    Raises:
        RecipeError: Optuna is not installed.
    """

    def __init__(self, space: Space, seed: int, earlier: Sequence[Coefficients] = ()) -> None:
        optuna = import_optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space, self._earlier = space, earlier
        self._distributions = {key: _to_optuna(optuna, d) for key, d in space.distributions.items()}
        self._study = optuna.create_study(direction="maximize", sampler=_sampler_by_number(optuna, seed))
        self._trials: dict[int, Any] = {}

    def propose(self, number: int) -> Coefficients:
        """The coefficients of the trial that began before, else what Optuna proposes."""
        if number < len(self._earlier):
            # Optuna must know the earlier trial as its own: it learns from trials that it was asked for.
            self._study.enqueue_trial(
                {key: self._optuna_value(key, value) for key, value in self._earlier[number].items()}
            )
        self._trials[number] = self._study.ask(self._distributions)
        params = self._trials[number].params
        return {key: self._recipe_value(key, params[key]) for key in self._space.distributions}

    def learn(self, number: int, value: float | None) -> None:
        """Tell Optuna; a trial without a value failed."""
        if value is None:
            self._study.tell(self._trials[number], state=import_optuna().trial.TrialState.FAIL)
        else:
            self._study.tell(self._trials[number], value)

    def _optuna_value(self, key: str, value: Any) -> Any:
        """A coefficient as Optuna knows it: a choice by its place, as Optuna takes plain values only."""
        distribution = self._space.distributions[key]
        return distribution.values.index(value) if isinstance(distribution, Choice) else value

    def _recipe_value(self, key: str, value: Any) -> Any:
        distribution = self._space.distributions[key]
        return distribution.values[value] if isinstance(distribution, Choice) else value


def import_optuna() -> Any:
    """Import Optuna.

    Returns: the module.

    Raises:
        RecipeError: it is not installed; the message says how to install it.
    """
    try:
        import optuna
    except ImportError as error:
        raise RecipeError(
            f"--search optuna: Optuna cannot be imported ({error}); pip install -e '.[tune]' in the clone "
            "installs it"
        ) from None
    return optuna


def _to_optuna(optuna: Any, distribution: Distribution) -> Any:
    """The same distribution in Optuna's terms; a choice by its place."""
    if isinstance(distribution, Uniform):
        low, high, logarithmic = distribution.low, distribution.high, distribution.logarithmic
        return optuna.distributions.FloatDistribution(low, high, log=logarithmic)
    if isinstance(distribution, RandInt):
        return optuna.distributions.IntDistribution(distribution.low, distribution.high)
    assert isinstance(distribution, Choice)
    return optuna.distributions.CategoricalDistribution(range(len(distribution.values)))


def _sampler_by_number(optuna: Any, seed: int) -> Any:
    class ByNumber(optuna.samplers.BaseSampler):  # type: ignore[misc]
        """A TPE sampler of its own for every trial, seeded by the trial's number.

        One sampler for all would draw differently after a restart, as its stream would begin anew.
        """

        def before_trial(self, study: Any, trial: Any) -> None:
            # Modulo 2^32: Optuna seeds a numpy RandomState, which takes 32 bits.
            self._tpe = optuna.samplers.TPESampler(seed=derive(seed, "tune", "optuna", trial.number) % 2**32)

        def infer_relative_search_space(self, study: Any, trial: Any) -> Mapping[str, Any]:
            search_space: Mapping[str, Any] = self._tpe.infer_relative_search_space(study, trial)
            return search_space

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Mapping[str, Any]:
            params: Mapping[str, Any] = self._tpe.sample_relative(study, trial, search_space)
            return params

        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
            return self._tpe.sample_independent(study, trial, param_name, param_distribution)

    return ByNumber()
