"""A study's quick version and its tables: each becomes a study of its own, in a folder of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from rayfed_kd.comparison.studies import Study, StudyTable, check_names, joined
from rayfed_kd.errors import RecipeError
from rayfed_kd.files import file_name


def quick_version(study: Study) -> Study:
    """The study's quick version, in a folder whose name ends in -quick.

    Every published table says what differs in it from the paper's setting.

    Args:
        study: a study file's content.

    Raises:
        RecipeError: the study has no quick version, or it names a row or table that the study does not have.
    """
    quick = study.quick
    if quick is None:
        raise RecipeError("quick=true: this study has no quick version; expected a study with the key quick")
    check_names("quick.tables", quick.tables or (), study.tables)
    changes = {
        "title": joined(study.title, f"quick: {quick.title}"),
        "overrides": [*study.overrides, *quick.overrides],
        "seeds": quick.seeds or study.seeds,
        "folder": f"{study.folder}-quick",
        "tables": _tables_named(study, quick.tables),
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
        RecipeError: the study does not have such a table.
    """
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
        RecipeError: a table names a row that the study does not have.
    """
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
    }
    return without_rows(study.model_copy(update=changes), table.without)
