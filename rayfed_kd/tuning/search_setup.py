"""From a command line to a search: everything that can be refused before the first trial is refused here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rayfed_kd.errors import RecipeError, naming, optional_package
from rayfed_kd.experiment.evaluated_metrics import evaluated_metrics
from rayfed_kd.experiment.judging import SearchMetric, choose_metric
from rayfed_kd.files import path_fault
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.setting.setting import Setting
from rayfed_kd.tuning.search_folder import SchedulerName, SearchFolder, SearchName, SearchSettings
from rayfed_kd.tuning.space import MOST_TRIALS, Coefficients, Space, read_space

DEFAULT_TRIALS = 10


@dataclass(frozen=True)
class SearchRequest:
    """What a command line asks for.

    Attributes:
        space: a YAML file; rayfed_kd/tuning/space.py shows one.
        samples: number of trials; None: the space's, else 10. Grid search takes none: it runs every
            combination.
        search: how coefficients are proposed.
        scheduler: asha stops trials that are behind, fifo lets every trial end.
        metric: METRIC or METRIC/MODEL; None: the space's, else the recipe's headline.
        folder: where everything goes.
    """

    space: str | Path
    samples: int | None
    search: SearchName
    scheduler: SchedulerName
    metric: str | None
    folder: str | Path


@dataclass(frozen=True)
class Search:
    """A search that passed every check.

    Attributes:
        recipe: what every trial starts from.
        space: what is searched.
        metric: what is searched for.
        search: how coefficients are proposed.
        scheduler: which trials are stopped early.
        trials: how many.
        listed: the trials' coefficients where they are known beforehand, else empty.
        folder: where everything goes.
    """

    recipe: Recipe
    space: Space
    metric: SearchMetric
    search: SearchName
    scheduler: SchedulerName
    trials: int
    listed: Sequence[Coefficients]
    folder: SearchFolder

    @property
    def settings(self) -> SearchSettings:
        """What search.yaml keeps of the search."""
        recipe = self.recipe.model_dump()
        return SearchSettings(recipe, self.space.entries, str(self.metric), self.search, self.scheduler)


def prepare_search(
    setting: Setting, request: SearchRequest, accept: Callable[[Coefficients], None]
) -> Search:
    """Check a request, and make the search of it.

    Args:
        setting: what the recipe was made into.
        request: what the command line asks for.
        accept: raises RecipeError if the recipe cannot be run with the coefficients.

    Raises:
        RecipeError: the space, the metric, the number of trials or a trial's coefficients are bad; or Optuna
            is asked for and not installed.
    """
    if request.search == "optuna":
        with optional_package("--search optuna: Optuna", "tune"):
            import optuna  # noqa: F401
    space, recipe = read_space(request.space), setting.recipe
    if recipe.stop is not None:
        raise RecipeError("stop: a search ends its trials itself; expected stop=null, or --scheduler asha")
    # The message names the space's file only if the metric stands there.
    with naming(space.source if request.metric is None else None):
        metric = choose_metric(request.metric or space.metric, evaluated_metrics(setting))
    space.check(accept)
    listed = _listed_coefficients(space, request, recipe.seed)
    # Every key by itself is valid now; two together may still contradict each other.
    for number, coefficients in enumerate(listed):
        try:
            accept(coefficients)
        except RecipeError as error:
            message = f"trial {number}, {dict(coefficients)}: {error.message}"
            raise RecipeError(message, error.path, error.hint, space.source) from None
    trials = len(listed) if request.search == "grid" else _number_of_trials(request, space)
    if fault := path_fault(str(request.folder)):
        raise RecipeError(f"--folder: {fault}")
    folder = SearchFolder(Path(request.folder).expanduser().resolve())
    return Search(recipe, space, metric, request.search, request.scheduler, trials, listed, folder)


def _listed_coefficients(space: Space, request: SearchRequest, seed: int) -> list[Coefficients]:
    if request.search == "grid":
        if request.samples is not None:
            raise RecipeError("--samples: grid search runs every combination; expected no --samples")
        return list(space.grid())
    trials = _number_of_trials(request, space)
    return [space.draw(seed, number) for number in range(trials)] if request.search == "random" else []


def _number_of_trials(request: SearchRequest, space: Space) -> int:
    # Not `or`: 0 is refused below, and must not become the default.
    samples = next((n for n in (request.samples, space.samples) if n is not None), DEFAULT_TRIALS)
    if samples < 1:
        raise RecipeError(f"--samples {samples}: expected a number of trials of at least 1")
    if samples > MOST_TRIALS:
        raise RecipeError(f"--samples {samples}: expected at most {MOST_TRIALS:,} trials")
    return samples
