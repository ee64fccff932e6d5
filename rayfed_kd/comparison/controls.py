"""Rows that a comparison adds to methods on labelled public samples: what the labels do alone.

With labels at the server or on a public set, accuracy says little about what clients teach one another: in
Aiersilan 2026, arXiv 2607.01272, a student of a teacher at chance learns from the labels alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import get_args

from rayfed_kd.algorithms import METHODS
from rayfed_kd.comparison.checking import method_of
from rayfed_kd.comparison.planning import plan_runs
from rayfed_kd.comparison.studies import Claim, RowModel, Study, StudyRun
from rayfed_kd.comparison.study_changes import with_changes_in_title
from rayfed_kd.errors import RecipeError, in_words
from rayfed_kd.protocol import Control, MethodOptions
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.results.summary import SMALLER_IS_BETTER
from rayfed_kd.setting.metrics import make_metrics

LABELS: Control = "labels alone"


def control_label(label: str, control: Control) -> str:
    """The label of a row's control."""
    return f"{label}, {control}"


def control_labels(study: Study) -> list[str]:
    """The labels of all controls that a study's rows can have."""
    return [control_label(label, control) for label in study.labels for control in get_args(Control)]


def with_controls(study: Study, without: Collection[str]) -> Study:
    """The study with the controls that its key `controls` asks for, each behind its row.

    A claim for each evaluated model says whether the method lies above its labels alone, or below them in a
    headline whose smaller values are better. A control that the study has as a row of its own is left to the
    study.

    Args:
        study: one table's study, with the command line's changes and what searches found: a control's changes
            win over these.
        without: labels of rows that are left out.
    """
    if study.controls == "none":
        return study
    runs, claims, left_out = list[StudyRun](), list[Claim](), list[str]()
    for run in study.runs:
        controls, own_claims = _controls(study, run)
        runs.append(run)
        for name, changes in controls.items():
            label = control_label(run.label, name)
            if label in study.labels or (study.controls == "labels" and name != LABELS):
                continue
            if label in without:
                left_out.append(label)
                continue
            fields = {"label": label, "published": None, "against": None, "search": None}
            runs.append(run.with_overrides(changes).model_copy(update=fields))
            if name == LABELS:
                claims += own_claims
    controlled = study.model_copy(update={"runs": runs, "claims": [*study.claims, *claims]})
    return with_changes_in_title(controlled, [f"without {in_words(left_out)}"] if left_out else [])


def uncontrolled(recipes: Mapping[str, Recipe]) -> list[str]:
    """A sentence on rows that learn from public labels, and beside which no row has these labels alone.

    A user's own method that asks for labels and names no controls is one of them.

    Args:
        recipes: label -> the row's recipe.
    """
    learning = [label for label, recipe in recipes.items() if _learns_labels(recipe)]
    rows = [label for label in learning if control_label(label, LABELS) not in recipes]
    if not rows:
        return []
    return [f"public labels train {in_words(rows)}, and no row has these labels alone: a gain may be theirs"]


def _learns_labels(recipe: Recipe) -> bool:
    method = method_of(recipe)
    unnamed = recipe.method.name not in METHODS and type(method.options).controls is MethodOptions.controls
    return LABELS in method.options.controls or (unnamed and method.public == "labels")


def _controls(study: Study, run: StudyRun) -> tuple[Mapping[Control, Sequence[str]], Sequence[Claim]]:
    """A row's controls, and a claim for each model; None is the first of a user's own method.

    A recipe that cannot be read has none: the check before the first run refuses it.
    """
    try:
        (planned,) = plan_runs(study.model_copy(update={"runs": [run], "seeds": study.seeds[:1]}))
        recipe = load_recipe(planned.source, planned.overrides)
        method, metrics = method_of(recipe), make_metrics(recipe)
    except RecipeError:
        return {}, []
    models: Sequence[str | None] = method.evaluates or [None]
    falling = {metric.title for metric in metrics if metric.better == "smaller"}
    headline = study.headline or ""  # as fm, or a metric of the recipe's behind its test, as local_brier
    falls = headline in SMALLER_IS_BETTER or headline.partition("_")[2] in falling
    shown = [model for model in models if model is None or model in (study.models or models)]
    return method.options.controls, [_claim(run.label, model, falls) for model in shown]


def _claim(label: str, model: str | None, falls: bool) -> Claim:
    rows = [RowModel(run=name, model=model) for name in (label, control_label(label, LABELS))]
    where, (higher, lower) = ("below", rows[::-1]) if falls else ("above", rows)
    says = f"{label} {where} its public labels alone{f' ({model})' if model else ''}"
    return Claim(says=says, higher=higher, lower=lower)
