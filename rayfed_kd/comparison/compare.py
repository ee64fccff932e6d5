"""`rayfed_kd.compare`: a study, or recipes as rows, from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfed_kd.comparison.checking import check_studies
from rayfed_kd.comparison.comparing import compare as compare_runs
from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.costs import AxisName
from rayfed_kd.comparison.runs import run_each
from rayfed_kd.comparison.studies import Study
from rayfed_kd.comparison.study_selection import Sources, select_studies
from rayfed_kd.comparison.writers.files import write_comparison
from rayfed_kd.comparison.writers.markdown import render_markdown
from rayfed_kd.experiment.result import Tell
from rayfed_kd.recipe.overrides import Overrides, override_lines

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure

    from rayfed_kd.results.study_console import Work


@dataclass(frozen=True)
class ComparisonResult:
    """One table of a study. Printed, and in a notebook, it shows the table as Markdown.

    Attributes:
        comparison: its numbers.
        files: what was written: comparison.md, .tex and .parquet, and pictures.
    """

    comparison: Comparison
    files: Sequence[Path]

    @property
    def folder(self) -> Path:
        """Where its runs and files lie."""
        return Path(self.comparison.study.folder)

    def table(self) -> pa.Table:
        """A row for each run, model, metric and statistic, as Arrow; comparison.parquet has the same."""
        from rayfed_kd.comparison.writers.parquet import comparison_table

        return comparison_table(self.comparison)

    def plot(self, metric: str | None = None, against: AxisName | None = None) -> Figure:
        """Curves: the mean over seeds, with a band of one sample deviation.

        Args:
            metric: amp, fm, wlp, ua, server_accuracy, or one that the recipes name, as local_macro_f1;
                None: the headline of the study.
            against: what they are drawn over: bytes, bytes_up, bytes_down, epsilon, local_epsilon, sim_s or
                wall_s; None: rounds.

        Raises:
            RecipeError: no row has the metric, or there is no such axis.
        """
        from rayfed_kd.comparison.writers.pictures import against_picture, curves_picture

        shown = metric or self.comparison.headline
        if against is None:
            return curves_picture(self.comparison, shown)
        return against_picture(self.comparison, shown, against)

    def __str__(self) -> str:
        return render_markdown(self.comparison)

    def _repr_markdown_(self) -> str:
        return str(self)


def compare(
    study: str | Path | Mapping[str, Any] | Sequence[str | Path],
    overrides: Overrides = (),
    *,
    seeds: int | Sequence[int] | None = None,
    folder: str | Path | None = None,
    quick: bool = False,
    tables: Sequence[str] = (),
    only: Sequence[str] = (),
    without: Sequence[str] = (),
    against: Sequence[str] = (),
    local: bool = False,
    jobs: int | None = None,
    address: str | None = None,
    add_seeds: int | None = None,
    tell: Tell = lambda line: None,
    **keys: Any,
) -> list[ComparisonResult]:
    """Run a study, or several recipes, with every seed. Finished runs are not run again.

    Args:
        study: a study's file, or its name; a study as nested mappings, with the key `runs`; several recipes'
            files or names; or label -> recipe, each a file, a name or nested mappings.
        overrides, keys: changes to every row, as in `run`.
        seeds: use these seeds, or the seeds 1 to this number; None: the study's, else 1.
        add_seeds: run so many seeds more than the study's and those that were added before.
        folder: where runs and tables go; None: the study's.
        quick: take the study's quick version.
        tables, only, without: names of tables to keep, of rows to keep, and of rows to leave out.
        against: what to draw the headline over, beside what the study names: bytes, bytes_up, bytes_down,
            epsilon, local_epsilon, sim_s or wall_s.
        local: run in this process, one run after another, without Ray.
        jobs: runs at a time on Ray; None: as many as have room.
        address: of a Ray cluster; None: RAY_ADDRESS, else a private Ray.
        tell: called with a line when a run starts and when it ends.

    Returns: one for each table of the study.

    Raises:
        RecipeError, DataError: the study or a recipe cannot be run; raised before the first run.
        RunError: a run failed.
    """
    sources: Sources = [study] if isinstance(study, str | Path) else study
    studies = select_studies(
        sources,
        override_lines(overrides, keys),
        seeds=seeds,
        add_seeds=add_seeds,
        folder=None if folder is None else str(folder),
        quick=quick,
        tables=tables,
        only=only,
        without=without,
        against=against,
    )
    check_studies(studies)
    return [compare_study(one, local=local, jobs=jobs, address=address, tell=tell) for one in studies]


def compare_study(
    study: Study,
    *,
    local: bool,
    jobs: int | None,
    address: str | None,
    tell: Tell,
    work: Work | None = None,
) -> ComparisonResult:
    """Run what is missing of one table, and write it.

    Args:
        study: the table's.
        local, jobs, address, tell: as in `compare`.
        work: is kept up with how far each run is.

    Raises: as `compare`.
    """
    run_missing = partial(run_each, local=local, address=address, jobs=jobs, tell=tell, work=work)
    comparison = compare_runs(study, run=run_missing, tell=tell)
    return ComparisonResult(comparison, write_comparison(comparison, Path(study.folder)))
