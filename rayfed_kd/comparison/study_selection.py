"""From a command line's words to studies: a study file's tables, or recipes as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayfed_kd.comparison.controls import control_labels, with_controls
from rayfed_kd.comparison.curves import AXES
from rayfed_kd.comparison.planning import seeds_there
from rayfed_kd.comparison.searching import with_found
from rayfed_kd.comparison.studies import Paper, Study, check_names, read_study, with_folder
from rayfed_kd.comparison.study_changes import change_study, quick_version, split_into_tables, with_tables
from rayfed_kd.errors import RecipeError, naming, shown
from rayfed_kd.files.folders import file_name, plain_folder
from rayfed_kd.recipe.loading import RecipeSource
from rayfed_kd.recipe.overrides import plain_value
from rayfed_kd.recipe.validation import validate
from rayfed_kd.recipe.yaml_documents import read_yaml

# A study's or recipes' files or names; a study as nested mappings; or label -> recipe.
Sources = Sequence[str | Path] | Mapping[str, Any]

STUDY_KEYS = ("base", "seeds", "claims")  # a file that has one of them, and no method, is a study


def select_studies(
    sources: Sources,
    overrides: Sequence[str] = (),
    *,
    seeds: int | Sequence[int] | None = None,
    add_seeds: int | None = None,
    folder: str | None = None,
    quick: bool = False,
    tables: Sequence[str] = (),
    only: Sequence[str] = (),
    without: Sequence[str] = (),
    against: Sequence[str] = (),
    paper: bool = False,
) -> list[Study]:
    """The studies that a command line, or `rayfed_kd.compare`, asks for, one per table.

    Args:
        sources: one study, or recipes, each of which becomes a row: files, or names of `rayfed-kd recipes`.
            In Python also a study as nested mappings, or label -> recipe.
        overrides, only, without: as `change_study` takes them; a table without a row is left out.
        seeds: these seeds, or the seeds 1 to this number, in place of the study's.
        add_seeds: so many seeds more than the study's and those that were added before.
        folder: where runs and tables go, in place of the study's.
        quick: take the study's quick version.
        tables: names of the tables to keep; empty: all.
        against: what the headline is drawn over beside what the study names, as `AXES`.
        paper: write a paper's files, also of a study that does not ask for them.

    Raises:
        RecipeError: there is no such file, row, table, axis or quick version, or no row is left.
    """
    if seeds is not None and add_seeds is not None:
        raise RecipeError("--seeds and --add-seeds: expected one of them")
    numbers = list(range(1, seeds + 1)) if isinstance(seeds := plain_value(seeds), int) else seeds
    if numbers is not None and (len(set(numbers)) != len(numbers) or min(numbers, default=-1) < 0):
        raise RecipeError(f"seeds {list(numbers)}: expected one or more, each once, and none below 0")
    if not sources:
        raise RecipeError("compare: expected a study file or at least one recipe beside the changes")
    if isinstance(sources, Mapping) and "runs" in sources:
        study = validate(Study, with_folder(plain_value(sources), folder))
    elif isinstance(sources, Mapping):
        study = _study_of_recipes(_labelled(sources), numbers or [1])
    elif len(sources) == 1 and _is_study(sources[0]):
        study = read_study(sources[0], folder)
    else:
        if twice := [str(source) for source in sources if list(sources).count(source) > 1]:
            raise RecipeError(
                f"compare: {twice[0]} is named twice; expected each recipe once. --seeds repeats all"
            )
        study = _study_of_recipes({_label(source, sources): source for source in sources}, numbers or [1])
    with naming(study.source or None):
        if quick:
            split_into_tables(study)  # a name that is wrong in a table which is left out is wrong, too
            study = quick_version(study)
        if folder is not None:
            study = study.model_copy(update={"folder": plain_folder(folder)})
        check_names("--against", against, AXES)
        drawn = list(dict.fromkeys([*study.against, *against]))
        own_paper = study.paper or (Paper() if paper else None)
        study = study.model_copy(update={"against": drawn, "paper": own_paper})
        check_names("--only", only, study.labels)
        check_names("--without", without, [*study.labels, *control_labels(study)])
        parts = split_into_tables(with_tables(study, tables))

        def changed(numbers: Sequence[int] | None) -> list[Study]:
            studies = [change_study(part, overrides, numbers, only=only, without=without) for part in parts]
            return [table for table in studies if table.runs]

        selected = changed(numbers)
        if not selected:
            raise RecipeError("--only and --without leave no row; expected at least one")
        if add_seeds is not None:
            selected = changed(more_seeds([with_controls(table, without) for table in selected], add_seeds))
        found = [table if table.search is None else with_found(table, overrides) for table in selected]
        return [with_controls(table, without) for table in found]


def more_seeds(tables: Sequence[Study], count: int) -> list[int]:
    """The seeds of a study's tables, those that were added before, and `count` more.

    A seed counts as added if each row of each table has finished with it. One that was begun and cut off is
    among the new ones, so that the same command goes on where it was cut off.

    Args:
        tables: a study's tables, which have the same seeds.
        count: of new seeds, at least 0.
    """
    seeds = set(tables[0].seeds)
    rows = [(Path(table.folder), run.label) for table in tables for run in table.runs]
    finished = set[int].intersection(*(seeds_there(*row, finished=True) for row in rows))
    begun = set[int].union(*(seeds_there(*row, finished=False) for row in rows))
    seeds |= finished
    cut_off = sorted(begun - seeds)
    after = max(seeds | begun) + 1
    new = [*cut_off, *range(after, after + count)][:count]
    return sorted({*seeds, *new})


def _study_of_recipes(recipes: Mapping[str, RecipeSource], seeds: Sequence[int]) -> Study:
    content = {
        "runs": [{"label": label, "base": plain_value(recipe)} for label, recipe in recipes.items()],
        "folder": f"runs/compare-{file_name('-'.join(recipes))}",
        "seeds": list(seeds),
    }
    return validate(Study, content)


def _labelled(recipes: Mapping[str, Any]) -> Mapping[str, RecipeSource]:
    """The mapping, if it is one from labels to recipes; a recipe itself is none."""
    for label, recipe in recipes.items():
        if "method" in recipes or not (isinstance(label, str) and isinstance(recipe, str | Path | Mapping)):
            raise RecipeError(
                "compare: expected a mapping from labels to recipes, as {'A': 'quickstart'}, or a study, "
                f"which has the key runs; got {shown(label)}: {shown(recipe)}"
            )
    return recipes


def _is_study(source: str | Path) -> bool:
    """Whether a file has rows, or other keys of a study and no method; a recipe has none.

    Raises: RecipeError if it cannot be read.
    """
    with naming(source):
        content = read_yaml(source, "study", "recipe")
    keys = set(content) if isinstance(content, dict) else set()
    return "runs" in keys or ("method" not in keys and not keys.isdisjoint(STUDY_KEYS))


def _label(source: str | Path, sources: Sequence[str | Path]) -> str:
    """A file's name without its suffix; its folder's name before it where two files have the same name.

    Raises: RecipeError if this tells it from no other file.
    """
    path = Path(source)
    namesakes = [Path(other).parent.name for other in sources if Path(other).stem == path.stem]
    if namesakes.count(path.parent.name) > 1:
        raise RecipeError(f"compare: {source} and another recipe have one name, in folders of one name")
    return path.stem if len(namesakes) == 1 else f"{path.parent.name}-{path.stem}"
