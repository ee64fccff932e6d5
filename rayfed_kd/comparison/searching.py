"""Studies whose rows are searched first: all with the same budget, on seeds on which nothing is judged.

A row's trials lie in the study's folder, in search/LABEL. The row gets the coefficients of the configuration
with the largest mean over the search's seeds, of each trial's mean of the last evaluations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from rayfed_kd.comparison.planning import plan_runs
from rayfed_kd.comparison.studies import Study
from rayfed_kd.errors import RecipeError, RunError, counted, in_words, naming
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.experiment.result import Tell
from rayfed_kd.files.folders import file_name
from rayfed_kd.tuning.search_folder import SEARCH_FILE
from rayfed_kd.tuning.search_setup import Search, prepare_search
from rayfed_kd.tuning.space import Coefficients, coefficient_overrides, coefficient_text, read_space
from rayfed_kd.tuning.tune import accept_coefficients, running

JUDGED_ON = ("data", "partition", "seed")  # a row that searched them would have a table of its own


@dataclass(frozen=True)
class RowSearch:
    """A row's search, which passed every check.

    Attributes:
        label: the row's.
        search: its trials are each configuration with each of the seeds, one after another.
        seeds: of the trials.
    """

    label: str
    search: Search
    seeds: Sequence[int]

    @property
    def trials_left(self) -> int:
        """How many trials are not over."""
        return self.search.trials - sum(r.over for r in self.search.folder.records()[: self.search.trials])

    def run(self, tell: Tell, **options: Any) -> None:
        """Run the trials that are left, on Ray; `rayfed_kd.tuning.tune.running` has the options."""
        tell(f"{self.label} is searched in {self.search.folder.path}")
        with running(self.search, tell, resume=(self.search.folder.path / SEARCH_FILE).is_file(), **options):
            pass

    def found(self, last: int) -> tuple[Coefficients, float, int]:
        """The best configuration's coefficients and mean value, the first of equals; how many have a value.

        Args:
            last: how many evaluations of a trial count.

        Raises: RunError if no configuration has a value with every seed.
        """
        folder, metric, size = self.search.folder, self.search.metric, len(self.seeds)
        trials, means = folder.records(), dict[int, float]()
        for first in range(0, self.search.trials, size):
            ended = [trial for trial in trials[first : first + size] if trial.status == "finished"]
            curves = [(trial.round, folder.values(trial.number, metric)) for trial in ended]
            # Without a finite value at the end it has diverged: earlier values are not its last.
            values = [points[-last:] for end, points in curves if points and points[-1][0] == end]
            if len(values) == size:
                means[first] = fmean(fmean(value for _, value in points) for points in values)
        if not means:
            what = f"no configuration in {folder.path} has a value with every seed"
            raise RunError(f"{self.label}: {what}; remove the folder to search anew")
        best = max(means, key=means.__getitem__)
        coefficients = {key: value for key, value in trials[best].coefficients.items() if key != "seed"}
        return coefficients, means[best], len(means)


def with_found(study: Study, overrides: Sequence[str]) -> Study:
    """The study whose rows have what their searches found; a row whose search is not over stays as it is.

    Args:
        study: one table's study, with the command line's changes.
        overrides: these changes.

    Raises:
        RecipeError: a row cannot be searched, its folder holds another search, the search's seeds are judged
            on, or a change is of a key that a row searches.
        RunError: a search is over, and none of its configurations has a value with every seed.
    """
    for run in study.runs:
        with naming(f"{study.source or 'study'}, row {run.label}"):
            keys = () if run.search is None else read_space(run.search).distributions
        for key in keys:
            for override in overrides:
                name = override.partition("=")[0]
                if f"{key}.".startswith(f"{name}.") or f"{name}.".startswith(f"{key}."):
                    raise RecipeError(f"{override}: the row {run.label} searches {key}; expected another key")
    runs, sentences = {run.label: run for run in study.runs}, list[str]()
    for row in row_searches(study, begun=True):
        if row.trials_left:
            continue
        coefficients, value, valued = row.found(study.last)
        found = runs[row.label].with_overrides(coefficient_overrides(coefficients))
        runs[row.label] = found.model_copy(update={"search": None})
        told = ", ".join(f"{key} {coefficient_text(number)}" for key, number in coefficients.items())
        metric, number = row.search.metric, row.search.trials // len(row.seeds)
        of = f"{valued} of " * (valued < number) + counted(number, "configuration")
        sentences.append(
            f"{row.label} has {told}: the best of {of}, {metric.told(value)} "
            f"{metric} with seed{'s' * (len(row.seeds) > 1)} {in_words(map(str, row.seeds))}"
        )
    changed = study.model_copy(update={"runs": [runs[label] for label in study.labels]})
    changed._found = tuple(sentences)
    return changed


def row_searches(study: Study, *, begun: bool = False) -> Iterator[RowSearch]:
    """Each searched row's search.

    Args:
        study: one table's study.
        begun: those alone that have begun; of others the data may not be at hand.

    Raises: RecipeError as `with_found`.
    """
    assert study.search is not None
    seeds = study.search.seeds
    if both := {*seeds} & {*study.seeds}:
        raise RecipeError(f"search.seeds: {min(both)} is judged on, too; expected none of the study's seeds")
    if len({*seeds}) < len(seeds):
        raise RecipeError(f"search.seeds = {seeds}: expected each once")
    for run in study.runs:
        folder = Path(study.folder) / "search" / file_name(run.label)
        is_begun = (folder / SEARCH_FILE).is_file()
        if run.search is None or is_begun < begun:
            continue
        (planned,) = plan_runs(study.model_copy(update={"runs": [run], "seeds": seeds[:1]}))
        with planned.naming():
            space = read_space(run.search)
            if key := next((key for key in space.distributions if key.split(".")[0] in JUDGED_ON), None):
                raise RecipeError(f"{key}: all rows are judged on the same; expected another key")
            prepared = prepare(planned.source, planned.overrides)
            search = prepare_search(
                prepared.setting,
                space,
                partial(accept_coefficients, prepared),
                samples=study.search.samples,
                scheduler="fifo",
                metric=None if space.metric else study.headline,
                folder=folder,
                seeds=seeds,
            )
            if is_begun:
                search.folder.check(search.settings)
        yield RowSearch(run.label, search, seeds)
