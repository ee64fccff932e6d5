"""Comparisons: the runs of a study, one table, the paper's numbers beside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rayfed_kd.comparison.planning import Planned, _checked, _notes, plan
from rayfed_kd.comparison.studies import Study
from rayfed_kd.errors import naming

if TYPE_CHECKING:
    from rayfed_kd.comparison.table import Comparison


def compare(
    study: Study,
    *,
    run: Callable[[Sequence[Planned]], None],
    tell: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Runs what is missing of a study and compares.

    Args:
        study: what to run.
        run: runs those given, and renames each run's folder from `aside` when it is finished.
        tell: called with a line about what is there already.
    Raises: RecipeError if the study or one of its recipes is bad, before the first run; RunError.
    """
    with naming(study.source or None):
        planned = plan(study)
        recipes = _checked(study, planned)
    missing = [one for one in planned if not one.done]
    if len(missing) < len(planned):
        tell(f"{len(planned) - len(missing)} of {len(planned)} runs are there in {study.folder}")
    if missing:
        run(missing)
    from rayfed_kd.comparison.table import Comparison

    rows = {one.label: recipe for one, recipe in zip(planned, recipes, strict=True)}
    return Comparison.read(study, planned, _notes(study, rows))
