"""What a command line changes of a study; the table's title and the papers' headings say so."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rayfed_kd.comparison.studies import Study, StudyRun, TargetRun, joined
from rayfed_kd.comparison.study_tables import without_rows
from rayfed_kd.errors import RecipeError, in_words, naming
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
    if folder_override := next((change for change in overrides if change.startswith("results.folder")), None):
        raise RecipeError(
            f"override {folder_override!r}: a comparison gives each run its folder; expected --folder"
        )
    left_out = [label for label in study.labels if label in without or label not in (only or study.labels)]
    changed, lost_references = _without_references(without_rows(study, left_out), left_out)
    changes = [override + _replaced_settings(changed, override) for override in overrides]
    new_seeds = study.seeds if seeds is None else list(seeds)
    if new_seeds != study.seeds:
        changes.append(f"seeds {_listed(new_seeds)} for {_listed(study.seeds)}")
    if left_out and only:
        changes.append(f"of {len(study.labels)} rows only {in_words(changed.labels)}")
    elif left_out:
        changes.append(f"without {in_words(left_out)}")
    runs = [run.with_overrides(overrides) for run in changed.runs]
    changed = changed.model_copy(update={"seeds": new_seeds, "runs": runs})
    return with_changes_in_title(changed, [*changes, *lost_references])


def _without_references(study: Study, left_out: Collection[str]) -> tuple[Study, list[str]]:
    """The study without target and relative changes that refer to rows left out, and what these were."""
    lost, target = [], study.target
    if isinstance(target, TargetRun) and target.run in left_out:
        lost.append(f"no target, which was {target.run}'s best")
        target = None
    runs = []
    for run in study.runs:
        if run.against in left_out:
            lost.append(f"no relative change of {run.label}, which was to {run.against}")
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


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
