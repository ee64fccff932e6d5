"""Commands about several runs: compare, tune, report."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rayfed_kd.cli.interruption import Interruptions
from rayfed_kd.cli.options import ADDRESS, AGAINST, ESTIMATE, JSON, OVERRIDES, RECIPE, UserPath, each_once
from rayfed_kd.errors import RecipeError, RunError, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rayfed_kd.comparison.compare import ComparisonResult
    from rayfed_kd.comparison.studies import Study

QUICK = "quick=true"
MOST_SEEDS = 10_000  # each is a run of every row


@click.command()
@click.argument(
    "configs", nargs=-1, required=True, metavar="CONFIG [CONFIG|KEY=VALUE]...", callback=each_once
)
@click.option(
    "--seeds", type=click.IntRange(1, MOST_SEEDS), help="Run the seeds 1 to N. Default: the study's, else 1."
)
@click.option("--seed", "own_seeds", type=int, multiple=True, metavar="N", help="Run this seed; repeatable.")
@click.option(
    "--add-seeds",
    type=click.IntRange(0, MOST_SEEDS),
    help="Run N seeds more than the study's and those added before; 0 shows all that are there.",
)
@click.option(
    "--table", "tables", multiple=True, metavar="NAME", help="Run this table of the study; repeatable."
)
@click.option("--only", multiple=True, metavar="LABEL", help="Run this row and no other; repeatable.")
@click.option("--without", multiple=True, metavar="LABEL", help="Leave this row out; repeatable.")
@AGAINST
@click.option("--paper", is_flag=True, help="Write a paper's files, too: table.tex, figures as PDF and SVG.")
@click.option("--jobs", type=click.IntRange(1), help="Runs at a time on Ray. Default: as many as have room.")
@click.option("--folder", type=UserPath(), help="Where runs and tables go. Default: the study's folder.")
@click.option("--local", is_flag=True, help="Run in this process, one run after another, without Ray.")
@ESTIMATE
@ADDRESS
@JSON
@click.pass_obj
def compare(
    interruptions: Interruptions,
    /,
    configs: tuple[str, ...],
    jobs: int | None,
    local: bool,
    only_estimated: bool,
    address: str | None,
    **selection: Any,
) -> None:
    """Run a study, or several recipes, with every seed, and compare the runs in one table.

    Studies and recipes are files, or names that `rayfed-kd recipes` lists.

    KEY=VALUE changes every recipe. A study file gives rows options of their own:
    docs/reference/study.md has every key. quick=true runs a study's quick version. --table, --only
    and --without take parts of a study. The table's title names what the command line changes.

    The table has mean and deviation of every metric, each row's difference to the baseline with its 95 %
    interval, the paper's values, and how far both orders agree. Where an interval holds zero, the table says
    how many seeds more would decide, from five seeds on; --add-seeds runs them. A second table has what each
    row sent, and what it needed to reach the study's target; --against draws accuracy over it.
    Markdown, LaTeX, Parquet and curves are written to the folder. Finished runs are not run again: a study
    that was cut off goes on with the same command.

    --json prints comparison.parquet's rows and the files' names, a table after the other.

    --estimate measures a few short rounds of each row in this process, on parts of the data, and adds up
    what is not finished yet.
    """
    from rayfed_kd.cli.listing import echo_json
    from rayfed_kd.comparison.checking import check_studies
    from rayfed_kd.comparison.compare import compare_study, missing_searches
    from rayfed_kd.comparison.study_selection import select_studies
    from rayfed_kd.comparison.writers.all_tables import claims_without_model
    from rayfed_kd.results.console import StudyConsole

    overrides = [word for word in configs if "=" in word and word != QUICK]
    if wrong := next((word for word in overrides if word.partition("=")[0] == "quick"), None):
        raise RecipeError(f"{wrong}: expected {QUICK}, or nothing")
    sources = [word for word in configs if "=" not in word]
    if own_seeds := selection.pop("own_seeds"):
        if selection["seeds"] is not None:
            raise RecipeError("--seeds and --seed: expected one of them")
        selection["seeds"] = own_seeds
    progress = sys.stderr if (as_json := selection.pop("as_json")) else None
    selected = partial(select_studies, sources, overrides, quick=QUICK in configs, **selection)
    if only_estimated:
        if as_json:
            raise RecipeError("--estimate prints no JSON: expected it without --json")
        _show_estimates(check_studies(selected()))
        return
    with interruptions.resumed_by("the same compare command again"):
        studies = check_studies(selected())
        if missing := missing_searches(studies):
            for row in missing:
                with StudyConsole("trials", progress) as console, interruptions.calling(console.stopping):
                    row.run(console.message, concurrent=jobs, address=address, work=console.work)
            studies = check_studies(selected())
        results, unjudged = [], []
        for study in studies:
            with StudyConsole("runs", progress) as console, interruptions.calling(console.stopping):
                result = compare_study(
                    study, local=local, jobs=jobs, address=address, tell=console.message, work=console.work
                )
            if not as_json:
                _show_comparison(result)
            results.append(result)
            unjudged += claims_without_model(result.comparison)
    if as_json:
        echo_json([{"rows": result.table().to_pylist(), "files": result.files} for result in results])
    else:
        # A study's tables lie in one folder, and make one page.
        _offer_report(results[0].folder if len(results) == 1 else results[0].folder.parent)
    if unjudged:
        raise RunError(
            f"claims without a verdict, in tables just written: {'; '.join(unjudged)}. Correct the claim's "
            "model, which runs nothing anew, or the row's options, which needs another --folder"
        )


def _offer_report(folder: Path) -> None:
    """Name the command that comes next; not to a file or a program, which reads paths here."""
    if sys.stdout.isatty():
        click.echo(f"report: rayfed-kd report {shlex.quote(str(folder))}")


def _show_estimates(studies: Sequence[Study]) -> None:
    """Estimate each row's runs and trials that are not over, and all of them together."""
    from rayfed_kd.comparison.compare import missing_searches
    from rayfed_kd.comparison.planning import plan_runs
    from rayfed_kd.experiment.estimating import estimate
    from rayfed_kd.results.screen import clock_text

    seconds = 0.0
    for study in studies:
        trials = {row.label: row.trials_left for row in missing_searches([study])}
        for label, runs in groupby(plan_runs(study), attrgetter("label")):
            first, *others = runs
            number = sum(not run.done for run in (first, *others)) + trials.get(label, 0)
            if number == 0:
                continue
            with first.naming():
                cost = estimate(first.source, first.overrides, tell=partial(_tell_of_row, label))
            click.echo(f"{label}, {counted(number, 'run')}{', each' if number > 1 else ':'} {cost}")
            seconds += number * cost.run_s
    click.echo(f"all: {clock_text(seconds)} (h:mm:ss) on one core or GPU, one run after another")


def _tell_of_row(label: str, line: str) -> None:
    click.echo(f"{label}: {line}", err=True)


def _show_comparison(result: ComparisonResult) -> None:
    """Show the table on the screen, and name its files."""
    from rich.console import Console

    from rayfed_kd.comparison.writers.all_tables import print_comparison

    console = Console()
    if console.is_terminal:
        print_comparison(result.comparison, console)
    else:  # a file or another program: no line is folded to a width
        click.echo(result)
    for path in result.files:
        click.echo(path)


@click.command()
@RECIPE
@OVERRIDES
@click.option(
    "--space",
    required=True,
    type=UserPath(),
    help="YAML file that says which keys take which values, or a name of `rayfed-kd recipes`.",
)
@click.option("--samples", type=int, help="Number of trials. Default: the space's, else 10.")
@click.option(
    "--scheduler",
    type=click.Choice(["asha", "fifo"]),
    default="asha",
    show_default=True,
    help="asha stops trials that are behind; fifo lets every trial end.",
)
@click.option(
    "--search",
    type=click.Choice(["random", "optuna", "grid"]),
    default="random",
    show_default=True,
    help="How coefficients are proposed.",
)
@click.option("--metric", help="METRIC/MODEL, as amp/oca. Default: the space's, else that of the last model.")
@click.option("--concurrent", type=click.IntRange(1), help="Trials at a time. Default: as many as have room.")
@click.option(
    "--folder", type=UserPath(), help="Where trials and tables go. Default: runs/tune- and the recipe's name."
)
@click.option("--resume", is_flag=True, help="Go on with the search in the folder.")
@ADDRESS
@click.pass_obj
def tune(interruptions: Interruptions, /, recipe: str, overrides: tuple[str, ...], **options: Any) -> None:
    """Search the coefficients of RECIPE with Ray Tune: every trial is a run of its own.

    docs/guide/tuning.md shows a space file. ASHA stops trials that are behind after a ninth of the
    rounds and after three times as many.

    The folder gets trials.parquet, best.yaml (a recipe that `run` takes), pictures, and TensorBoard files
    with HParams. --resume goes on after an interruption and tries failed trials again; with more --samples
    it adds trials.
    """
    from rich.console import Console

    from rayfed_kd.cli.listing import page_width
    from rayfed_kd.results.console import StudyConsole
    from rayfed_kd.tuning.tune import tune as search

    with (
        interruptions.resumed_by("the same tune command with --resume"),
        StudyConsole("trials") as console,
        interruptions.calling(console.stopping),
    ):
        result = search(recipe, overrides=overrides, tell=console.message, work=console.work, **options)
    page_width(Console()).print(result.screen_table())
    for line in result.failures():
        click.echo(line, err=True)
    for path in result.files:
        click.echo(path)
    _offer_report(result.folder)


@click.command()
@click.argument("folders", nargs=-1, required=True, type=UserPath(path_type=Path), metavar="FOLDER...")
@click.option(
    "--to",
    type=UserPath(path_type=Path),
    help="File name of the page. Default: report.html, inside the FOLDER; of several in the current one.",
)
@AGAINST
@click.option("--force", is_flag=True, help="Replace a file that is no report about the same FOLDERs.")
def report(folders: tuple[Path, ...], to: Path | None, against: tuple[str, ...], *, force: bool) -> None:
    """Write one HTML page about the runs, comparisons and searches in FOLDERs, and say where it lies.

    The page works offline. Without --against it draws the headline over bytes where there are several rows,
    and over epsilon where runs have privacy. Its tables lie beside it as Markdown, under the same name with
    the suffix .md. A comparison's tables are those that `compare` wrote; the same compare command writes
    them anew.
    """
    from rayfed_kd.reporting.page import report as write_report

    for path in write_report(*folders, to=to, against=against, force=force):
        click.echo(path)


COMMANDS = (compare, tune, report)
