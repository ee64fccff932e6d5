"""From a command line's words to studies: a study file's tables, or recipes as rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rayfed_kd.comparison.studies import Study, check_names, read_study
from rayfed_kd.comparison.study_changes import change_study
from rayfed_kd.comparison.study_tables import quick_version, split_into_tables, with_tables
from rayfed_kd.errors import RecipeError, naming
from rayfed_kd.files import plain_folder
from rayfed_kd.recipe.yaml_documents import read_yaml


def select_studies(
    sources: Sequence[str],
    overrides: Sequence[str] = (),
    *,
    seeds: int | None = None,
    folder: str | None = None,
    quick: bool = False,
    tables: Sequence[str] = (),
    only: Sequence[str] = (),
    without: Sequence[str] = (),
) -> list[Study]:
    """The studies that a command line asks for, one per table.

    Args:
        sources: one study, or recipes, each of which becomes a row: files, or names of `rayfed-kd recipes`.
        overrides, seeds, only, without: as `change_study` takes them; a table without a row is left out.
        folder: where runs and tables go, in place of the study's.
        quick: take the study's quick version.
        tables: names of the tables to keep; empty: all.

    Raises:
        RecipeError: there is no such file, row, table or quick version, or no row is left.
    """
    if not sources:
        raise RecipeError("compare: expected a study file or at least one recipe beside the changes")
    if len(sources) == 1 and _is_study(sources[0]):
        study = read_study(sources[0])
    else:
        study = _study_of_recipes(sources, seeds or 1)
    with naming(study.source or None):
        if quick:
            split_into_tables(study)  # a name that is wrong in a table which is left out is wrong, too
            study = quick_version(study)
        if folder is not None:
            study = study.model_copy(update={"folder": plain_folder(folder)})
        check_names("--only", only, study.labels)
        check_names("--without", without, study.labels)
        selected = [
            change_study(table, overrides, seeds, only=only, without=without)
            for table in split_into_tables(with_tables(study, tables))
        ]
        if not any(table.runs for table in selected):
            raise RecipeError("--only and --without leave no row; expected at least one")
        return [table for table in selected if table.runs]


def _study_of_recipes(sources: Sequence[str], seeds: int) -> Study:
    labels = [_label(source, sources) for source in sources]
    content = {
        "runs": [{"label": label, "base": source} for label, source in zip(labels, sources, strict=True)],
        "folder": f"runs/compare-{'-'.join(labels)}",
        "seeds": list(range(1, seeds + 1)),
    }
    return Study.model_validate(content)


def _is_study(source: str) -> bool:
    """Whether a file has rows; a recipe has none.

    Raises: RecipeError if it cannot be read.
    """
    with naming(source):
        content = read_yaml(source, "study", "recipe")
    return isinstance(content, dict) and "runs" in content


def _label(source: str, sources: Sequence[str]) -> str:
    """A file's name without its suffix; its folder's name before it where two files have the same name."""
    path = Path(source)
    namesakes = [other for other in sources if Path(other).stem == path.stem]
    return path.stem if len(namesakes) == 1 else f"{path.parent.name}-{path.stem}"
