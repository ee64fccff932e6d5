"""Comparisons: run what is missing of a study, and read the numbers of all its runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rayfed_kd.comparison.checking import resolve_recipes
from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.controls import uncontrolled
from rayfed_kd.comparison.costs import read_totals
from rayfed_kd.comparison.curves import read_curves
from rayfed_kd.comparison.planning import PlannedRun, finished_seeds, plan_runs
from rayfed_kd.comparison.row_notes import row_notes
from rayfed_kd.comparison.studies import Study
from rayfed_kd.errors import RecipeError, in_words, naming


def compare(
    study: Study,
    *,
    run: Callable[[Sequence[PlannedRun]], None],
    tell: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Run what is missing of a study, and compare all its runs.

    Args:
        study: one table's study.
        run: runs the runs that it is given and, when one is finished, renames its folder from
            `unfinished_folder`; `rayfed_kd.comparison.runs.run_each` is one.
        tell: called with a line that says how many runs are finished already.

    Raises:
        RecipeError: the study or one of its recipes is bad; raised before the first run.
        RunError: a run failed.
    """
    with naming(study.source or None):
        planned = plan_runs(study)
        recipes = resolve_recipes(study, planned)
    _check_code(planned)
    missing = [one for one in planned if not one.done]
    if len(missing) < len(planned):
        tell(f"{len(planned) - len(missing)} of {len(planned)} runs are finished in {study.folder}")
    if missing:
        run(missing)
    recipes_by_label = {one.label: recipe for one, recipe in zip(planned, recipes, strict=True)}
    notes = [*row_notes(study, recipes_by_label), *uncontrolled(recipes_by_label), *_other_seeds(study)]
    totals = {(one.label, one.seed): read_totals(one.folder) for one in planned}
    return Comparison(study, read_curves(planned), totals, notes)


def _check_code(planned: Sequence[PlannedRun]) -> None:
    """Refuse a table of runs that were made with another version of the user's own code than is there now.

    Raises: RecipeError
    """
    from rayfed_kd.results.folder import changed_own_code

    for run in planned:
        if run.done and (changed := changed_own_code(run.folder)):
            raise RecipeError(
                f"{run.name}: {run.folder} was made with another {changed[0]}.py; move or delete the folder "
                "to run it anew, give another --folder, or put the file back"
            )


def _other_seeds(study: Study) -> list[str]:
    """A sentence on seeds that every row has run with, and that the table leaves out."""
    folder = Path(study.folder)
    finished = set[int].intersection(*(finished_seeds(folder, label) for label in study.labels))
    others = sorted(finished - set(study.seeds))
    if not others:
        return []
    listed = in_words(map(str, others))
    return [f"the folder has runs of all rows with seeds {listed}, too: --add-seeds 0 shows them"]
