"""Read runs, comparisons and searches for a report: from their folders alone, never from the data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from rayfed_kd.comparison.curves import Curve, curves_of
from rayfed_kd.comparison.writers.all_tables import read_table_line
from rayfed_kd.errors import DataError, RecipeError, naming
from rayfed_kd.experiment.result import read_summary
from rayfed_kd.files.folders import file_name, no_folder
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.yaml_documents import read_yaml_file
from rayfed_kd.results.folder import read_environment
from rayfed_kd.results.schemas import SCHEMAS
from rayfed_kd.results.summary import is_finished, summarise
from rayfed_kd.results.tables import read_table
from rayfed_kd.tuning.search_folder import SEARCH_FILE, SearchFolder
from rayfed_kd.tuning.search_result import SearchResult, read_search_result

NOT_SHOWN = {"client_ids"}  # the page needs no such column: runs of earlier versions lack it
SEED = re.compile(r"-seed\d+(\.running)?$")


@dataclass(frozen=True)
class Run:
    """What one run's folder holds.

    Attributes:
        label: what the report calls the run; no other run has it.
        group: what the run has in common with the same row's other seeds; `label` where there are none.
        folder: the run's folder.
        status: "finished", or what became of the run.
        recipe: the resolved recipe.
        recipe_text: config.yaml's text.
        paper: the method's paper as the run noted it; "" if it noted none.
        environment: environment.json's content; empty if there is none.
        tables: name -> table, as `SCHEMAS`.
        summary: as `summarise` makes it, of the rounds that the tables have now.
        resumed: the rounds after which the run was resumed.
    """

    label: str
    group: str
    folder: Path
    status: str
    recipe: Recipe
    recipe_text: str
    paper: str
    environment: Mapping[str, Any]
    tables: Mapping[str, pa.Table]
    summary: Mapping[str, Any]
    resumed: Sequence[int]

    @cached_property  # several sections draw them
    def curves(self) -> dict[tuple[str, str], Curve]:
        """(evaluated model, metric) -> curve."""
        return curves_of(self.tables)


class Sources(NamedTuple):
    """What a report is about.

    Attributes:
        runs: in the order of the folders, a comparison's in that of its table, by name without one.
        comparisons: folder -> its comparison.md; "" if it was not written yet.
        searches: what searches found; of their trials only the best is among the runs.
    """

    runs: Sequence[Run]
    comparisons: Mapping[Path, str]
    searches: Sequence[SearchResult]


def read_sources(folders: Sequence[Path]) -> Sources:
    """Read runs, comparisons with their runs, and searches with their best trial.

    Args:
        folders: any mixture of the three; a folder that is named twice is read once.

    Raises:
        RecipeError: a folder holds no run, or one that this version cannot read.
    """
    runs: dict[Path, Run] = {}
    comparisons: dict[Path, str] = {}
    searches: dict[Path, SearchResult] = {}
    for folder in folders:
        if (folder / SEARCH_FILE).is_file():
            search = searches[folder.resolve()] = read_search_result(folder)
            if search.best is not None:
                path = SearchFolder(folder).trial(search.best.trial)
                name = f"{folder.resolve().name}, trial {search.best.trial} (the best)"
                runs.setdefault(path.resolve(), replace(_read_run(path, name), label=name))
            continue
        for path, row in _runs_of(folder, comparisons):
            runs.setdefault(path.resolve(), _read_run(path, row))
    return Sources(_with_distinct_labels(list(runs.values())), comparisons, list(searches.values()))


def _runs_of(folder: Path, comparisons: dict[Path, str]) -> Iterator[tuple[Path, str]]:
    """(run folder, its row's name) below a folder that was given."""
    if (folder / "config.yaml").is_file():
        yield folder, folder.resolve().name
        return
    if not folder.is_dir():
        raise no_folder(folder)
    members = sorted(path.parent for path in folder.glob("*/config.yaml"))
    tables = sorted({path.parent.parent for path in folder.glob("*/*/config.yaml")} - {folder / "trials"})
    if not members and tables:  # a study of several tables
        for table in tables:
            yield from _runs_of(table, comparisons)
        return
    if not members:
        raise RecipeError(f"{folder} holds no run: there is no config.yaml, and none one or two levels below")
    text = comparisons[folder] = _text(folder / "comparison.md")
    places = _places(text)
    rows = [(member, SEED.sub("", member.name)) for member in members]
    yield from sorted(rows, key=lambda row: places.get(row[1], len(places)))


def _text(path: Path) -> str:
    """A file's text, "" without it. A kill may leave half a character; what else it says still counts."""
    return path.read_text(encoding="utf8", errors="replace") if path.is_file() else ""


def _places(text: str) -> dict[str, int]:
    """Row's name in folders -> its place in the study: colours are then those of the comparison's pictures.

    Args:
        text: comparison.md, whose first table names the rows as `LABEL (MODEL)`.
    """
    table = next((block for block in text.split("\n\n") if block.startswith("|")), "")
    cells = [read_table_line(line)[0] for line in table.splitlines()[2:]]
    labels = dict.fromkeys(file_name(cell.rpartition(" (")[0]) for cell in cells)
    return {label: place for place, label in enumerate(labels)}


def _read_run(folder: Path, row: str) -> Run:
    # The tables count, and not summary.json: it is of the last time that the run ended.
    environment, noted = read_environment(folder), read_summary(folder)
    begun = environment.get("packages", {}).get("rayfed-kd", "an unknown version")
    versions = f"it was begun with rayfed-kd {begun}, which wrote another form than this version reads"
    try:
        recipe = load_recipe(folder / "config.yaml")
    except RecipeError as error:
        raise RecipeError(f"{error} ({versions})") from None
    tables = {name: _read_current_table(folder, name, versions) for name in SCHEMAS}
    resumed = re.findall(r"resumed after round (\d+)$", _text(folder / "log.txt"), re.MULTILINE)
    return Run(
        label=folder.resolve().name,
        group=row,
        folder=folder,
        status=_status(noted, recipe, tables["rounds"].num_rows),
        recipe=recipe,
        recipe_text=(folder / "config.yaml").read_text(encoding="utf8"),
        paper=_paper(folder / "options.yaml"),
        environment=environment,
        tables=tables,
        summary=summarise(tables, "", recipe.partition.clients, recipe.evaluation.clients),
        resumed=[*map(int, resumed)],
    )


def _paper(path: Path) -> str:
    """The paper that a run noted: its method may be a user's own, and a report imports no code."""
    if not path.is_file():
        return ""
    with naming(path):
        options = read_yaml_file(path, "run's options")
    paper = options.get("paper") if isinstance(options, Mapping) else None
    return paper if isinstance(paper, str) else ""


def _read_current_table(folder: Path, name: str, versions: str) -> pa.Table:
    """A table with every column that the page needs."""
    try:
        table = read_table(folder / "tables", name)
    except DataError as error:
        raise RecipeError(f"{folder}: table {name} cannot be read: {error}") from None
    missing = [column for column in SCHEMAS[name].names if column not in {*table.column_names, *NOT_SHOWN}]
    if missing:
        raise RecipeError(f"{folder}: table {name} has no column {', '.join(missing)}; {versions}")
    return table


def _status(noted: Mapping[str, Any], recipe: Recipe, rounds: int) -> str:
    """What became of a run; summary.json is written when it ends, and not touched when it is gone on with."""
    done = f"{rounds} of {recipe.rounds} rounds"
    if not noted:
        return f"not ended, {done}: it still runs, or was killed"
    if stopped := noted.get("stopped") if noted["rounds"] == rounds else None:
        return f"{noted['status']}, {done}: {stopped}"
    if noted["rounds"] != rounds or (is_finished(noted) and rounds < recipe.rounds):
        return f"gone on with and not ended, {done}: it still runs, or was killed"
    return str(noted["status"]) if is_finished(noted) else f"{noted['status']}, {done}"


def _with_distinct_labels(runs: Sequence[Run]) -> list[Run]:
    """Put the folder's name before labels and groups that several folders share."""
    labels = [run.label for run in runs]
    parents: dict[str, set[Path]] = {}
    for run in runs:
        parents.setdefault(run.group, set()).add(run.folder.resolve().parent)
    labelled = []
    for run in runs:
        label = run.label if labels.count(run.label) == 1 else str(run.folder)
        group = run.group if len(parents[run.group]) == 1 else str(run.folder.parent / run.group)
        labelled.append(replace(run, label=label, group=group))
    return labelled
