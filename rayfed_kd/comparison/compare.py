"""`rayfed_kd.compare`: a study, or recipes as rows, from Python.

It runs what is missing of a study, reads the numbers of all its runs, and writes a comparison's files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rayfed_kd.comparison.checking import check_studies, check_study
from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.controls import uncontrolled
from rayfed_kd.comparison.curves import AxisName, Curve, CurveKey, RunTotals, curves_of, totals_of
from rayfed_kd.comparison.planning import PlannedRun, seeds_there
from rayfed_kd.comparison.row_notes import row_notes, with_stop_as_target
from rayfed_kd.comparison.runs import run_each
from rayfed_kd.comparison.searching import RowSearch, row_searches
from rayfed_kd.comparison.studies import Study
from rayfed_kd.comparison.study_selection import Sources, select_studies
from rayfed_kd.comparison.writers.all_tables import render_markdown
from rayfed_kd.comparison.writers.latex import render_latex
from rayfed_kd.comparison.writers.parquet import comparison_table
from rayfed_kd.data.cache import SCALE, content_hashes
from rayfed_kd.errors import RecipeError, in_words
from rayfed_kd.experiment.result import OnEvent, Tell, read_summary
from rayfed_kd.files.folders import locked_folder
from rayfed_kd.files.whole import atomic_write, remove_unfinished, write_parquet
from rayfed_kd.recipe.overrides import Overrides, override_lines
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.results.folder import changed_inputs, changed_packages, read_environment
from rayfed_kd.results.schemas import TABLES
from rayfed_kd.results.summary_table import left_out, untested_notes
from rayfed_kd.results.tables import read_table
from rayfed_kd.setting.loading import load_data

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLES_READ = ("rounds", "privacy", "metrics", "scores", "messages")


def compare_runs(
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
    planned, recipes = check_study(study)
    study = with_stop_as_target(study, recipes)
    _check_origins(planned, recipes)
    missing = [plan for plan in planned if not plan.done]
    if len(missing) < len(planned):
        tell(f"{len(planned) - len(missing)} of {len(planned)} runs are finished in {study.folder}")
    if missing:
        run(missing)
    recipes_by_label = {plan.label: recipe for plan, recipe in zip(planned, recipes, strict=True)}
    notes = [*row_notes(study, recipes_by_label), *study.found]
    notes += [*uncontrolled(recipes_by_label), *_other_seeds(study)]
    curves, totals = dict[CurveKey, Curve](), dict[tuple[str, int], RunTotals]()
    summaries = {plan.name: read_summary(plan.folder) for plan in planned}
    for plan in planned:
        notes += [note for note in read_environment(plan.folder).get("notes", ()) if note not in notes]
        ended = summaries[plan.name]
        how = [*ended.get("diverged", ()), ended.get("stopped"), left_out(ended.get("bad_replies"))]
        # It is another run than was asked for.
        notes += [f"{plan.name}: {text}" for text in how if text]
        tables = {name: read_table(plan.folder / TABLES, name) for name in TABLES_READ}
        totals[plan.label, plan.seed] = totals_of(tables)
        for (model, metric), curve in curves_of(tables).items():
            curves[CurveKey(plan.label, model, plan.seed, metric)] = curve
    return Comparison(study, curves, totals, [*notes, *untested_notes(summaries)])


def _check_origins(planned: Sequence[PlannedRun], recipes: Sequence[Recipe]) -> None:
    """Refuse a table of runs that were made with other data, code or files of the user's than are there now.

    Raises: RecipeError
    """
    kept = [(run, folder) for run in planned if (folder := run.kept_folder) is not None]
    # Where no run is to come, the data need not be at hand: finished runs are held against one another.
    data = content_hashes(load_data(recipes[0])) if kept and not all(run.done for run in planned) else {}
    for run, folder in kept:
        begun = read_environment(folder).get("data", {})
        data = data or begun
        parts = data.keys() - {SCALE} if begun else ()  # rows may scale pixels otherwise
        changed = changed_inputs(folder) if run.done else changed_packages(folder)
        changed += ["other data"] * any(begun.get(p) != data[p] for p in parts)
        if changed:
            raise RecipeError(
                f"{run.name}: {folder} was made with {changed[0]}; move or delete the folder "
                "to run it anew, give another --folder, or put back what it was made with"
            )


def _other_seeds(study: Study) -> list[str]:
    """A sentence on seeds that every row has run with, and that the table leaves out."""
    folder = Path(study.folder)
    by_row = (seeds_there(folder, label, finished=True) for label in study.labels)
    others = sorted(set[int].intersection(*by_row) - set(study.seeds))
    if not others or any(change.startswith("seeds ") for change in study.changes):
        return []  # seeds that the command line chose leave others out on purpose
    listed = in_words(map(str, others))
    return [f"the folder has runs of all rows with seeds {listed}, too: --add-seeds 0 shows them"]


@dataclass(frozen=True)
class ComparisonResult:
    """One table of a study. Printed, and in a notebook, it shows the table as Markdown.

    Attributes:
        comparison: its numbers.
        files: what was written: comparison.md, .tex and .parquet, pictures, and files for a paper.
    """

    comparison: Comparison
    files: Sequence[Path]

    @property
    def folder(self) -> Path:
        """Where its runs and files lie."""
        return Path(self.comparison.study.folder)

    def table(self) -> pa.Table:
        """A row for each run, model, metric and statistic, as Arrow; comparison.parquet has the same."""
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
        from rayfed_kd.comparison.writers.pictures import curves_picture

        return curves_picture(self.comparison, metric or self.comparison.headline, against)

    def __str__(self) -> str:
        return render_markdown(self.comparison)

    _repr_markdown_ = __str__


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
    paper: bool = False,
    local: bool = False,
    jobs: int | None = None,
    address: str | None = None,
    add_seeds: int | None = None,
    on_event: OnEvent | None = None,
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
        paper: write a paper's files as well: table.tex, and curves and intervals as PDF and SVG.
        local: run in this process, one run after another, without Ray.
        jobs: runs at a time on Ray; None: as many as have room.
        address: of a Ray cluster; None: RAY_ADDRESS, else a private Ray.
        on_event: called after each round of each run, as in `run`; the event's `run` says of which.
        tell: called with a line when a run starts and when it ends.

    Returns: one for each table of the study.

    Raises:
        RecipeError, DataError: the study or a recipe cannot be run; raised before the first run.
        RunError: a run failed.
    """
    sources: Sources = [study] if isinstance(study, str | Path) else study
    selected = partial(
        select_studies,
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
        paper=paper,
    )
    studies = check_studies(selected())
    if missing := missing_searches(studies):
        for row in missing:
            row.run(tell, concurrent=jobs, address=address, on_event=on_event)
        studies = check_studies(selected())
    return [
        compare_study(table, local=local, jobs=jobs, address=address, tell=tell, on_event=on_event)
        for table in studies
    ]


def missing_searches(studies: Sequence[Study]) -> list[RowSearch]:
    """The searches of studies' rows that are not over.

    Raises: RecipeError if one cannot be run.
    """
    return [row for study in studies if study.search for row in row_searches(study) if row.trials_left]


def compare_study(study: Study, *, tell: Tell, **running: Any) -> ComparisonResult:
    """Run what is missing of one table, and write it.

    Args:
        study: the table's.
        tell: as in `compare`.
        running: further arguments of `run_each`.

    Raises: as `compare`.
    """
    if running.get("local") and study.search is None and (running.get("jobs") or running.get("address")):
        raise RecipeError("--local runs without Ray; expected no --jobs and no --address")
    comparison = compare_runs(study, run=partial(run_each, tell=tell, **running), tell=tell)
    return ComparisonResult(comparison, write_comparison(comparison, Path(study.folder)))


WAIT_S = 60.0  # for another comparison that writes to the same folder


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Write comparison.md, .tex and .parquet, pictures of curves, and what the study has for a paper.

    What an earlier comparison wrote under the same names is replaced.

    Args:
        comparison: what is written.
        folder: made if it is not there.

    Returns: the paths of all files.

    Raises:
        RecipeError: the folder cannot be written, or another process has been writing to it for a minute.
    """
    # Matplotlib takes a second to load: not before there is something to write.
    from rayfed_kd.comparison.writers.pictures import write_pictures

    markdown, latex, parquet = (folder / f"comparison.{suffix}" for suffix in ("md", "tex", "parquet"))
    with locked_folder(folder, "--folder", "writing a comparison", WAIT_S):
        remove_unfinished(folder)
        atomic_write(markdown, render_markdown(comparison) + "\n")
        atomic_write(latex, render_latex(comparison) + "\n")
        write_parquet(parquet, comparison_table(comparison))
        pictures = write_pictures(comparison, folder)
        if comparison.study.paper is not None:
            from rayfed_kd.comparison.writers.paper import write_paper

            pictures += write_paper(comparison, comparison.study.paper, folder / "paper")
    return [markdown, latex, parquet, *pictures]
