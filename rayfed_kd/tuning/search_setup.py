"""From a command line to a search: everything that can be refused before the first trial is refused here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rayfed_kd.errors import RecipeError, naming, optional_package
from rayfed_kd.experiment.evaluated_metrics import evaluated_metrics
from rayfed_kd.experiment.judging import SearchMetric, choose_metric
from rayfed_kd.files.folders import path_fault
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.results.folder import fingerprints
from rayfed_kd.setting.setting import Setting
from rayfed_kd.tuning.search_folder import SchedulerName, SearchFolder, SearchName, SearchSettings
from rayfed_kd.tuning.space import MOST_TRIALS, Coefficients, Space

DEFAULT_TRIALS = 10


class Search(NamedTuple):
    """A search that passed every check.

    Attributes:
        recipe: what every trial starts from.
        space: what is searched.
        metric: what is searched for.
        settings: what search.yaml keeps of the search.
        trials: how many.
        listed: the trials' coefficients where they are known beforehand, else empty.
        folder: where everything goes.
        notes: of the recipe.
    """

    recipe: Recipe
    space: Space
    metric: SearchMetric
    settings: SearchSettings
    trials: int
    listed: Sequence[Coefficients]
    folder: SearchFolder
    notes: Sequence[str]


def prepare_search(
    setting: Setting,
    space: Space,
    accept: Callable[[Coefficients], Setting],
    *,
    samples: int | None = None,
    search: SearchName = "random",
    scheduler: SchedulerName = "asha",
    metric: str | None = None,
    folder: str | Path,
    seeds: Sequence[int] = (),
) -> Search:
    """Check what a command line asks for, and make the search of it.

    Args:
        setting: what the recipe was made into.
        space: what is searched.
        accept: makes the setting with coefficients; RecipeError if the recipe cannot be run with them.
        samples: number of trials; None: the space's, else 10. Grid search takes none: it runs every
            combination.
        search: how coefficients are proposed.
        scheduler: asha stops trials that are behind, fifo lets every trial end.
        metric: METRIC or METRIC/MODEL; None: the space's, else the recipe's headline.
        folder: where everything goes.
        seeds: a trial of each configuration with each of these, one after another, of all searches but
            Optuna's; empty: with the recipe's.

    Raises:
        RecipeError: the space, the metric, the number of trials or a trial's coefficients are bad; or Optuna
            is asked for and not installed.
    """
    if search == "optuna":
        with optional_package("--search optuna: Optuna", "tune"):
            import optuna  # noqa: F401
    recipe = setting.recipe
    if recipe.stop is not None:
        raise RecipeError("stop: a search ends its trials itself; expected stop=null")
    # The message names the space's file only if the metric stands there.
    with naming(space.source if metric is None else None):
        judged = choose_metric(metric or space.metric, evaluated_metrics(setting))

    def check(coefficients: Coefficients) -> None:
        choose_metric(str(judged), evaluated_metrics(accept(coefficients)))

    space.check(check)
    if search == "grid":
        if samples is not None:
            raise RecipeError("--samples: grid search runs every combination; expected no --samples")
        listed: list[Coefficients] = list(space.grid())
        trials = len(listed)
    else:
        trials = _number_of_trials(samples, space)
        drawn = trials if search == "random" else 0
        listed = [space.draw(recipe.seed, number) for number in range(drawn)]
    # Every key by itself is valid now; two together may still contradict each other.
    for number, coefficients in enumerate(listed):
        try:
            check(coefficients)
        except RecipeError as error:
            message = f"trial {number}, {dict(coefficients)}: {error.message}"
            raise RecipeError(message, error.path, error.hint, space.source) from None
    if seeds:
        listed = [{**drawn, "seed": seed} for drawn in listed for seed in seeds]
        space, trials = space.with_seeds(seeds), len(listed)
        for seed in seeds:
            accept({"seed": seed})
    if fault := path_fault(str(folder)):
        raise RecipeError(f"--folder: {fault}")
    place = SearchFolder(Path(folder).expanduser().resolve())
    dump, inputs = recipe.model_dump(), fingerprints(recipe, setting)
    settings = SearchSettings(dump, space.entries, str(judged), search, scheduler, inputs)
    return Search(recipe, space, judged, settings, trials, listed, place, setting.notes)


def _number_of_trials(option: int | None, space: Space) -> int:
    # Not `or`: 0 is refused below, and must not become the default.
    samples = next((n for n in (option, space.samples) if n is not None), DEFAULT_TRIALS)
    if not 1 <= samples <= MOST_TRIALS:
        raise RecipeError(f"--samples {samples}: expected 1 to {MOST_TRIALS:,} trials")
    return samples
