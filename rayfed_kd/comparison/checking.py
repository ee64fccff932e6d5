"""Checks of a study before its first run: what can be refused is refused before hours are spent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rayfed_kd.algorithms import METHODS
from rayfed_kd.comparison.planning import PlannedRun, plan_runs
from rayfed_kd.comparison.published import published_lines
from rayfed_kd.comparison.studies import Study, TargetRun, check_names
from rayfed_kd.errors import RecipeError, changes, naming, quoted
from rayfed_kd.experiment.preparation import find_own_modules, method_location
from rayfed_kd.experiment.resumability import decisive
from rayfed_kd.protocol import Method
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.overrides import override_lines
from rayfed_kd.recipe.registry import load_object
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.results.folder import begun_recipe
from rayfed_kd.results.names import ONE_FOR_ALL, metric_scale, nearest_model
from rayfed_kd.results.scores import is_score

# Where and how a run ran does not change its result, threads aside; the seed has a folder of its own.
FREE = {"results", "placement", "checkpoint", "seed"}


def check_studies(studies: Sequence[Study]) -> Sequence[Study]:
    """Check all tables of a study, before the first one's searches or runs take hours.

    Returns: the same.

    Raises:
        RecipeError: as `check_study`.
        DataError: the data of runs that are not finished is not on this machine.
    """
    from rayfed_kd.comparison.runs import check_rows
    from rayfed_kd.results.console import Work
    from rayfed_kd.setting.loading import find_data, load_data

    for place, study in enumerate(studies):
        # Of all tables first: the last one's data or model must not be missed after hours of runs.
        planned, recipes = check_study(study)
        unfinished = [(run, recipe) for run, recipe in zip(planned, recipes, strict=True) if not run.done]
        for _, recipe in unfinished[:1]:  # all rows have the same data
            find_data(recipe)
            for key, metric, _ in _named_metrics(study):
                if metric.startswith(("server_accuracy", "official_")) and load_data(recipe).test is None:
                    raise RecipeError("the data have no official test set", key, source=study.source or None)
        for run, _ in unfinished:
            if run.folder.is_dir() and any(run.folder.iterdir()):
                raise RecipeError(f"{run.folder} is there, without a finished run; expected another folder")
        # The first one's rows are built as it begins, if that is now.
        if place or any(run.search for run in study.runs):
            check_rows([run for run, _ in unfinished], Work())
    return studies


def check_study(study: Study) -> tuple[list[PlannedRun], list[Recipe]]:
    """Plan a study's runs, read their recipes, and check the study as a whole.

    Args:
        study: one table's study.

    Returns: its runs, and a recipe for each.

    Raises:
        RecipeError: two rows have the same label, a name refers to no row or to nothing that is printed, a
            recipe is bad, rows have different data, or a folder holds another run.
    """
    with naming(study.source or None):
        planned, recipes = plan_runs(study), list[Recipe]()
        _check_rows(study, planned)
        _check_published(study)
        for run in planned:
            with run.naming():
                place = override_lines({"results.folder": run.unfinished_folder})
                recipes.append(load_recipe(run.source, [*run.overrides, *place]))
        by_label = {run.label: read for run, read in zip(planned, recipes, strict=True)}
        _check_models(study, recipes)
        _check_metrics(study, by_label)
        _check_claimed_models(study, by_label)
        _check_same_data(planned, recipes)
        # What rows are to run with is known when all searches are over: then they are checked.
        if all(run.search is None for run in study.runs):
            for run, recipe in zip(planned, recipes, strict=True):
                if (folder := run.kept_folder) is not None:
                    _check_kept_run(folder, recipe)
    return planned, recipes


def _named_metrics(study: Study) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Where the study names a metric, which, and the labels of rows of which one must have it."""
    if study.headline is not None:
        yield "headline", study.headline, study.labels
    for place, claim in enumerate(study.claims):
        if metric := claim.metric or study.headline:
            yield from ((f"claims[{place}]", metric, [row.run]) for row in (claim.higher, claim.lower))
    for place, published in enumerate(study.published):
        if published.ours is not None:
            yield f"published[{place}].ours", published.ours, published.rows or study.labels


def _check_metrics(study: Study, recipes: Mapping[str, Recipe]) -> None:
    """Refuse metrics that rows cannot have: they would be missing after hours of runs."""
    for key, metric, labels in _named_metrics(study):
        reasons = [_why_without(recipes[label], metric) for label in labels]
        if all(reasons):
            whose = f"{quoted(labels[0])} has no" if len(labels) == 1 else "no row has"
            raise RecipeError(f"{whose} {metric}: {reasons[0]}", path=key)


def _why_without(recipe: Recipe, metric: str) -> str | None:
    """Why no model of the recipe can have a metric; None if one may."""
    test, _, title = metric.partition("_")
    if is_score(metric):
        from rayfed_kd.setting.metrics import make_metrics  # which loads torch

        if title not in {metric.title for metric in make_metrics(recipe)}:
            return f"evaluation.metrics is without {title}"
    elif metric in ("bytes", "server_accuracy") or recipe.method.name not in METHODS:
        return None
    elif not ONE_FOR_ALL.issuperset(method_of(recipe).evaluates or ["unknown"]):
        return None  # clients' own models are tested on what `partition.test` says
    without = recipe.partition.test == "official" and test != "official"
    return "with partition.test=official clients keep no test part" if without else None


def _check_rows(study: Study, planned: Sequence[PlannedRun]) -> None:
    labels = study.labels
    if len({run.folder for run in planned}) < len(planned):
        raise RecipeError(
            f"runs: {', '.join(map(quoted, labels))}: two rows have the same label, or a seed stands twice "
            f"in {study.seeds}; expected labels that differ in letters a to z or digits, and each seed once"
        )
    if isinstance(study.target, TargetRun):
        check_names("target.run", [study.target.run], labels)
    if study.baseline is not None:
        check_names("baseline", [study.baseline], labels)
    if study.paper is not None:
        check_names("paper.rows", study.paper.rows, labels)
        if study.paper.style is not None:
            from rayfed_kd.comparison.writers.paper import styled  # which loads matplotlib

            with styled(study.paper.style):
                pass
    for model, row in study.baselines.items():
        check_names(f"baselines.{model}", [row], labels)
    for place, claim in enumerate(study.claims):
        check_names(f"claims[{place}]", [claim.higher.run, claim.lower.run], labels)
        # Of points so small a margin is next to nothing; of fractions, the unit before 0.2, it was usual.
        if 0 < claim.margin < 0.1 and metric_scale(claim.metric or study.headline or "amp") == 100.0:
            raise RecipeError(f"claims[{place}].margin = {claim.margin:g}: it is in points, as 1.0 for one")
        if claim.higher == claim.lower:
            raise RecipeError(f"claims[{place}]: {claim.higher.run} is compared with itself; expected two")
    for run in study.runs:
        if run.search is not None and study.search is None:
            raise RecipeError(f"runs: {run.label} is searched; the study has no search: {{seeds, samples}}")
        if run.against is not None:
            check_names(f"runs: {run.label}: against", [run.against], filter(run.label.__ne__, labels))


def _check_models(study: Study, recipes: Sequence[Recipe]) -> None:
    """Check that some method calls a model as the study does, unless a row's method does not say."""
    named = {
        "models": study.models,
        "baselines": study.baselines,
        "published.models": [model for published in study.published for model in published.models],
        "runs.published": [m for run in study.runs if isinstance(run.published, dict) for m in run.published],
    }
    evaluated = [set(method_of(recipe).evaluates) for recipe in recipes] if any(named.values()) else []
    if not all(evaluated):
        return
    for where, models in named.items():
        for model in models:
            # The study may be a part of one: its other rows evaluate what these do not.
            if model not in set.union(*evaluated) and model not in (names := _model_names()):
                raise RecipeError(
                    f"{where}: no method evaluates a model {model!r}; there are {', '.join(names)}.",
                    hint=nearest_model(model, names),
                )


def _model_names() -> Sequence[str]:
    """What the methods of `algorithms` call their models."""
    methods = (load_object(location, "method.name") for location in METHODS.values())
    by_default = (method(method.options_model().model_construct()) for method in methods)
    return list(dict.fromkeys(name for method in by_default for name in method.evaluates))


def method_of(recipe: Recipe) -> Method[Any, Any]:
    """The recipe's method with its options. `evaluates` names no model where only a run tells.

    Raises: RecipeError if there is no such method, or an option is bad.
    """
    find_own_modules()
    from rayfed_kd.setting.blueprint import make_method

    return make_method(method_location(recipe), recipe.method)


def _check_claimed_models(study: Study, recipes: Mapping[str, Recipe]) -> None:
    """Check that the rows of a claim have the models that it names, as far as their methods tell."""
    for place, claim in enumerate(study.claims):
        for row in (claim.higher, claim.lower):
            models = method_of(recipes[row.run]).evaluates
            if row.model is not None and models and row.model not in models:
                raise RecipeError(
                    f"claims[{place}]: the row {quoted(row.run)} has no model {row.model!r}: "
                    f"{recipes[row.run].method.name} evaluates {', '.join(models)}.",
                    hint=nearest_model(row.model, models),
                )


def _check_same_data(planned: Sequence[PlannedRun], recipes: Sequence[Recipe]) -> None:
    data_of_rows = [recipe.data.model_dump(exclude={"augment", "pixels"}) for recipe in recipes]
    for run, data in zip(planned, data_of_rows, strict=True):
        if data != data_of_rows[0]:
            first = f"{planned[0].label} has data {_data_text(data_of_rows[0])}"
            raise RecipeError(
                f"runs: {first}, {run.label} has {_data_text(data)}; "
                "expected the same data and classes in every row"
            )


def _data_text(data: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in data.items() if value is not None)


def _check_published(study: Study) -> None:
    """Check that every printed table, metric and name exists that the study refers to."""
    printed_names = dict[str, None]()
    for published in study.published:
        lines = published_lines(published.paper, published.table, published.where)
        if published.metric is not None:
            metrics = sorted({metric for values in lines.values() for metric in values})
            check_names("published.metric", [published.metric], metrics)
        check_names("published.rows", published.rows, study.labels)
        printed_names |= dict.fromkeys(lines)
    for run in study.runs:
        names = run.published.values() if isinstance(run.published, dict) else filter(None, [run.published])
        check_names(f"runs: {run.label}: published", names, printed_names)


def _check_kept_run(folder: Path, recipe: Recipe) -> None:
    """Refuse a run of another recipe: its table would have a wrong label, or a new run take its place."""
    begun = begun_recipe(folder, recipe)
    # A run that a bad reply would have ended has none: where such replies are dropped it is the same.
    free = FREE | {"faults"} if begun.faults.bad_replies == "stop" else FREE
    if changed := changes(decisive(begun, free), decisive(recipe, free)):
        raise RecipeError(f"{folder} holds another run: {changed}. Give another --folder, or remove it")
