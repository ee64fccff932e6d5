"""Studies made of a study: its quick version, its tables, and what a command line changes of them.

Each table becomes a study of its own, in a folder of its own. What a command line changes stands in the
table's title and in the papers' headings.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from rayfed_kd.comparison.studies import Study, StudyRun, StudyTable, TargetRun, check_names, joined
from rayfed_kd.errors import RecipeError, in_words, naming
from rayfed_kd.files.folders import file_name
from rayfed_kd.recipe.loading import refuse_folder
from rayfed_kd.recipe.yaml_documents import yaml_line


def change_study(
    study: Study,
    overrides: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    *,
    only: Sequence[str] = (),
    without: Sequence[str] = (),
) -> Study:
    """The study as a command line changes it.

    Args:
        study: one table's study.
        overrides: changes to every row, as KEY=VALUE; they win over the row's own.
        seeds: in place of the study's; None: these.
        only: labels of the rows to keep; empty: all.
        without: labels of the rows to leave out.

    Returns: the changed study; what was held against a row that is left out is left out, too. It may have
        no row left.

    Raises:
        RecipeError: an override sets a run's folder, which the comparison chooses.
    """
    refuse_folder(overrides, "a comparison gives each run")
    left_out = [label for label in study.labels if label in without or label not in (only or study.labels)]
    changed, lost_references = _without_references(without_rows(study, left_out), left_out)
    changes = [override + _replaced_settings(changed, override) for override in overrides]
    new_seeds = study.seeds if seeds is None else list(seeds)
    if new_seeds != study.seeds:
        changes.append(f"seeds {in_words(map(str, new_seeds))} for {in_words(map(str, study.seeds))}")
    if left_out and only:
        changes.append(f"of {len(study.labels)} rows only {in_words(changed.labels)}")
    elif left_out:
        changes.append(f"without {in_words(left_out)}")
    if study.paper is not None and changed.paper is None:
        changes.append("no files for a paper, all of whose rows are left out")
    runs = [run.with_overrides(overrides) for run in changed.runs]
    changed = changed.model_copy(update={"seeds": new_seeds, "runs": runs})
    return with_changes_in_title(changed, [*changes, *lost_references])


def _without_references(study: Study, left_out: Collection[str]) -> tuple[Study, list[str]]:
    """The study without target and rows' own baselines that are left out, and what these were."""
    lost, target = [], study.target
    if isinstance(target, TargetRun) and target.run in left_out:
        lost.append(f"no target, which was {target.run}'s best")
        target = None
    runs = []
    for run in study.runs:
        if run.against in left_out:
            lost.append(f"{run.label} no longer against {run.against}")
            runs.append(run.model_copy(update={"against": None}))
        else:
            runs.append(run)
    return study.model_copy(update={"target": target, "runs": runs}), lost


def _replaced_settings(study: Study, override: str) -> str:
    """In brackets, the rows whose own setting the override takes the place of; "" if there are none."""
    key, _, text = override.partition("=")
    new_values = StudyRun(label="command line", overrides=[override]).own_values(key)
    labels_by_value: dict[str, list[str]] = {}
    for run in study.runs:
        with naming(f"{study.source or 'study'}, row {run.label}"):
            values = run.own_values(key)
        if values and values != new_values:
            labels_by_value.setdefault(yaml_line(values[0]), []).append(run.label)
    replaced = [
        f"{'rows' if len(labels) > 1 else 'row'} {in_words(labels)}: {value} -> {text}"
        for value, labels in labels_by_value.items()
    ]
    return f" ({'; '.join(replaced)})" if replaced else ""


def with_changes_in_title(study: Study, changes: Sequence[str]) -> Study:
    """The study whose title and papers' headings say what the command line changed.

    Args:
        changes: in words; empty: none.
    """
    if not changes:
        return study
    sentence = f"changed on the command line: {', '.join(changes)}"
    published = [table.with_difference(sentence) for table in study.published]
    title = joined(study.title or "Comparison", sentence)
    changed = study.model_copy(update={"title": title, "published": published})
    changed._changes = (*study.changes, *changes)
    return changed


def quick_version(study: Study) -> Study:
    """The study's quick version, in a folder whose name ends in -quick.

    Every published table says what differs in it from the paper's setting.

    Args:
        study: a study file's content.

    Raises:
        RecipeError: the study has no quick version, or it names a row or table that the study does not have,
            or one of its overrides would have no effect in a table.
    """
    quick = study.quick
    if quick is None:
        raise RecipeError("quick=true: this study has no quick version; expected a study with the key quick")
    check_names("quick.tables", quick.tables or (), study.tables)
    tables = _tables_named(study, quick.tables)
    for name, table in tables.items():
        keys = [line.partition("=")[0] for line in table.overrides]
        for line, key in product(quick.overrides, keys):
            # `local` undoes `local.epochs=1`, and `local.epochs` a part of `local={epochs: 1}`.
            part = StudyRun(label="quick", overrides=[line]).own_values(key)
            if part or f"{line.partition('=')[0]}.".startswith(f"{key}."):
                raise RecipeError(
                    f"quick.overrides: {line} has no effect in table {name}, which sets it; take quick.tables"
                )
        overrides = [*table.overrides, *(quick.tables or {}).get(name, [])]
        tables[name] = table.model_copy(update={"overrides": overrides})
    changes = {
        "title": joined(study.title, f"quick: {quick.title}"),
        "overrides": [*study.overrides, *quick.overrides],
        "seeds": quick.seeds or study.seeds,
        "folder": f"{study.folder}-quick",
        "tables": tables,
        "runs": study.runs_with("quick.runs", quick.runs),
        "published": [published.with_difference(quick.differs) for published in study.published],
        "quick": None,
    }
    return study.model_copy(update=changes)


def with_tables(study: Study, names: Sequence[str]) -> Study:
    """The study with some of its tables.

    Args:
        study: a study file's content.
        names: the tables to keep, as `--table` takes them; empty: all.

    Raises:
        RecipeError: the study does not have such a table, or two of its tables would have one folder.
    """
    if len({file_name(name) for name in study.tables}) < len(study.tables):
        told = f"tables: two of {in_words(study.tables)} would have one folder"
        raise RecipeError(f"{told}; expected names that differ in letters a to z or digits")
    if names and not study.tables:
        raise RecipeError(
            f"--table {names[0]!r}: this study has a single table, which has no name; expected no --table"
        )
    check_names("--table", names, study.tables)
    return study.model_copy(update={"tables": _tables_named(study, names)})


def split_into_tables(study: Study) -> list[Study]:
    """One study per table; the study itself if it has no tables.

    Args:
        study: a study file's content.

    Raises:
        RecipeError: a table names a row that the study does not have, or no row is searched.
    """
    if study.search is not None and all(run.search is None for run in study.runs):
        raise RecipeError("search: no row is searched; expected a row with search, or no search here")
    if not study.tables:
        return [study]
    return [_table_study(study, name, table) for name, table in study.tables.items()]


def without_rows(study: Study, labels: Collection[str]) -> Study:
    """The study without these rows, and without printed tables, claims and paper that are about them.

    Where the baseline is left out, the first row takes its place; the column's title says so.

    Args:
        study: one table's study.
        labels: the rows to leave out.
    """
    published_tables = []
    for published in study.published:
        rows = [label for label in published.rows if label not in labels]
        if rows or not published.rows:  # an empty list would stand for all rows
            published_tables.append(published.model_copy(update={"rows": rows}))
    paper = study.paper
    if paper is not None and paper.rows:
        rows = [label for label in paper.rows if label not in labels]
        paper = paper.model_copy(update={"rows": rows}) if rows else None
    changes = {
        "paper": paper,
        "runs": [run for run in study.runs if run.label not in labels],
        "published": published_tables,
        "claims": [claim for claim in study.claims if not {claim.higher.run, claim.lower.run} & set(labels)],
        "baseline": None if study.baseline in labels else study.baseline,
        "baselines": {model: row for model, row in study.baselines.items() if row not in labels},
    }
    return study.model_copy(update=changes)


def _tables_named(study: Study, names: Collection[str] | None) -> dict[str, StudyTable]:
    return {name: table for name, table in study.tables.items() if not names or name in names}


def _table_study(study: Study, name: str, table: StudyTable) -> Study:
    check_names(f"tables.{name}.without", table.without, study.labels)
    study, _ = _without_references(study, table.without)
    changes: dict[str, Any] = {
        "title": joined(study.title, name),
        "base": table.base or study.base,
        # The table's come after the study's own and the quick version's: they tell the tables apart.
        "overrides": [*study.overrides, *table.overrides],
        "folder": str(Path(study.folder) / file_name(name)),
        "runs": study.runs_with(f"tables.{name}.runs", table.runs),
        "published": [
            published.model_copy(update={"where": {**published.where, **table.where}})
            for published in study.published
        ],
        "tables": {},
        "target": study.target if table.target is None else table.target,
    }
    return without_rows(study.model_copy(update=changes), table.without)
