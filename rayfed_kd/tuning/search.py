"""A search made ready: everything that can be refused before its first trial is refused here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rayfed_kd.errors import RecipeError, RunError, naming
from rayfed_kd.files import file_name
from rayfed_kd.protocol import Personal, ServerContext
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.setting.setting import Setting
from rayfed_kd.tuning.folder import Asked, Metric, SchedulerName, SearchFolder, SearchName, chosen_metric
from rayfed_kd.tuning.proposers import Learning, Listed, Proposer
from rayfed_kd.tuning.spaces import Coefficients, Space, read_space

if TYPE_CHECKING:
    from rayfed_kd.tuning.findings import Found

TRIALS = 10


@dataclass(frozen=True)
class Wanted:
    """What a command line asks for.

    Attributes:
        space: a YAML file (rayfed_kd/tuning/spaces.py shows one).
        samples: trials; None: the space's, else 10; grid search has as many as there are combinations.
        search: who proposes coefficients.
        scheduler: asha stops trials that are behind, fifo lets all end.
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
        space, metric: what is searched, and what for.
        search, scheduler: who proposes, and who stops early.
        trials: how many.
        listed: their coefficients, where they are known beforehand; else empty.
        folder: where it goes.
    """

    recipe: Recipe
    space: Space
    metric: Metric
    search: SearchName
    scheduler: SchedulerName
    trials: int
    listed: Sequence[Coefficients]
    folder: SearchFolder

    @property
    def asked(self) -> Asked:
        """What makes it this search and no other."""
        recipe = self.recipe.model_dump()
        return Asked(recipe, self.space.raw, str(self.metric), self.search, self.scheduler)

    def proposer(self) -> Proposer:
        """Who says what the trials are; knows those that began before the search was cut off."""
        if self.search != "optuna":
            return Listed(self.listed)
        begun = [record.coefficients for record in self.folder.records()]
        return Learning(self.space, self.recipe.seed, begun)

    def found(self) -> Found:
        """What it found.

        Raises: RunError, with the errors, if no trial has a value.
        """
        from rayfed_kd.tuning.findings import Found
        from rayfed_kd.tuning.trial_rows import trial_rows

        rows = trial_rows(self.folder, self.trials, self.metric)
        found = Found(self.folder.path, rows, self.space, self.metric, self.recipe, self.asked.how)
        if found.best is None:
            raise RunError("\n".join(["no trial ended with a value:", *found.failures()]))
        return found


def ready_search(setting: Setting, wanted: Wanted, accept: Callable[[Coefficients], None]) -> Search:
    """The search that is wanted of a recipe.

    Args:
        setting: the recipe's.
        accept: raises RecipeError if these coefficients do not go with the recipe.
    Raises: RecipeError
    """
    space, recipe = read_space(wanted.space), setting.recipe
    with naming(space.source if wanted.metric is None else None):
        metric = chosen_metric(wanted.metric or space.metric, evaluated_metrics(setting))
    space.check(accept)
    listed = _listed(space, wanted, recipe.seed)
    for number, coefficients in enumerate(listed):
        try:
            accept(coefficients)
        except RecipeError as error:
            message = f"trial {number}, {dict(coefficients)}: {error.message}"
            raise RecipeError(message, error.path, error.hint, space.source) from None
    trials = len(listed) if wanted.search == "grid" else _samples(wanted, space)
    folder = SearchFolder(Path(wanted.folder).expanduser().resolve())
    return Search(recipe, space, metric, wanted.search, wanted.scheduler, trials, listed, folder)


def _listed(space: Space, wanted: Wanted, seed: int) -> list[Coefficients]:
    if wanted.search == "grid":
        if wanted.samples is not None:
            raise RecipeError("--samples: grid search runs every combination; expected no --samples")
        return list(space.grid())
    trials = _samples(wanted, space)
    return [space.draw(seed, number) for number in range(trials)] if wanted.search == "random" else []


def _samples(wanted: Wanted, space: Space) -> int:
    samples = next((n for n in (wanted.samples, space.samples) if n is not None), TRIALS)
    if samples < 1:
        raise RecipeError(f"--samples {samples}: expected a number of trials of at least 1")
    return samples


def evaluated_metrics(setting: Setting) -> Mapping[str, Sequence[str]]:
    """The models that a recipe evaluates, in the method's order, and the accuracies of each.

    First the headline: of a shared model the official test where there is one, else AMP; of clients' own UA.
    """
    facts, seed = setting.server_facts(0), setting.recipe.seed
    context = ServerContext(setting.workshop(), setting.device_data(), facts, seed)
    models = setting.method.evaluated(setting.method.init_server(context))
    shared = ["server_accuracy"] if setting.dataset.test is not None else []
    shared += ["amp", "ua", "wlp"] if any(len(part) for part in setting.partition.test) else []
    return {
        name: ["ua", "amp", "wlp"] if isinstance(model, Personal) else shared
        for name, model in models.items()
    }


def default_folder(recipe: str) -> str:
    """runs/tune- and the recipe's name: of a file its own, of a mapping its method's."""
    return f"runs/tune-{file_name(recipe)}"
