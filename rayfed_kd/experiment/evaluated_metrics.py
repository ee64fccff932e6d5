"""Which models a recipe evaluates by which metrics, and whether its `stop` looks at one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.judging import choose_metric
from rayfed_kd.protocol import Completing, Evaluable, Personal
from rayfed_kd.results.scores import is_score, score_name
from rayfed_kd.setting.metrics import make_metrics
from rayfed_kd.setting.setting import Setting


def check_stop(setting: Setting) -> None:
    """Refuse a recipe's `stop` that looks at what is not evaluated.

    Raises: RecipeError
    """
    stop = setting.recipe.stop
    if stop is None or stop.metric is None:
        return
    name = "/".join(filter(None, (stop.metric, stop.model)))
    choose_metric(name, evaluated_metrics(setting), "stop")
    if stop.at is not None and not is_score(stop.metric) and not 0 < stop.at <= 1:
        raise RecipeError(
            f"{stop.at:g}: {stop.metric} is a fraction of 1; expected more than 0 and at most 1, as 0.9",
            "stop.at",
        )


def evaluated_metrics(setting: Setting) -> Mapping[str, Sequence[str]]:
    """The models that a recipe evaluates, in the method's order, and the accuracies of each.

    Args:
        setting: what the recipe was made into.

    Returns: model -> columns of the table `metrics`, the headline first, and names of `score_name`. The
        headline of a shared model is the official test where there is one, else AMP; that of clients' own
        models is UA.
    """
    models = setting.method.evaluated(setting.method.init_server(setting.server_context()))
    shared = ["server_accuracy"] if setting.dataset.test is not None else []
    shared += ["amp", "ua", "wlp"] if len(setting.tested.indices) > 0 else []
    own = ["ua", "amp", "wlp"]
    if setting.recipe.partition.test == "official":
        own.append("server_accuracy")
    return {
        name: [*(own if isinstance(model, Personal | Completing) else shared), *_scores(setting, model)]
        for name, model in models.items()
    }


def _scores(setting: Setting, model: Evaluable) -> list[str]:
    """The recipe's metrics of a model, on what it is tested on, as far as a search may look for them."""
    official, local = setting.dataset.test is not None, len(setting.tested.indices) > 0
    tests = [test for test, exists in (("official", official), ("local", local)) if exists]
    if isinstance(model, Personal | Completing):
        tests = [setting.recipe.partition.test]
    metrics = [metric for metric in make_metrics(setting.recipe) if metric.better == "larger"]
    return [score_name({"test": test, "metric": metric.title}) for metric in metrics for test in tests]
