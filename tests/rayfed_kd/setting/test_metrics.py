"""Metrics that a recipe names: numbers worked by hand, and what is refused before the first round."""

from math import inf, isfinite, log, nan
from types import SimpleNamespace

import pytest
import torch
from small_recipes import MADE_UP

import rayfed_kd
from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.setting import torchmetrics_functions
from rayfed_kd.setting.metrics import make_metrics

RECIPE = {**MADE_UP, "method": {"name": "fedavg"}}
OWN = """
import torch
from rayfed_kd import metric


many = metric(lambda logits, labels: logits[0])
nothing = metric(lambda logits, labels: None)
undefined = metric(lambda logits, labels: torch.tensor(0.0) / 0)
resampled = metric(lambda logits, labels: logits[torch.randint(len(labels), labels.shape)].square().mean())


@metric
def broken(logits, labels, *, place: int = 9):
    return [][place]

@metric
def clashing(logits, labels, *, label: int = 1):
    return 1.0


@metric(better="smaller")
def spoiling(logits, labels):
    logits.zero_()
    return len(labels)


def unmarked(logits, labels):
    raise AssertionError("called")
"""
AUROC = "torchmetrics.functional.classification:multiclass_auroc"


def metric_of(*named):
    metrics = make_metrics(load_recipe({**RECIPE, "evaluation": {"metrics": list(named)}}))
    return metrics[0]


def logits_of(predicted, classes):
    return torch.nn.functional.one_hot(torch.tensor(predicted), classes).float()


def test_macro_f1_of_a_small_confusion_matrix():
    """(TP, FP, FN) are (2, 0, 1), (1, 1, 1), (1, 1, 0), and (0, 0, 0) of class 3, which is left out.

    (4/5 + 2/4 + 2/3) / 3 = 59/90.
    """
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    value = metric_of("macro_f1").value(logits_of([0, 0, 1, 1, 2, 2], 4), labels)
    assert value == pytest.approx(59 / 90, abs=1e-6)


CONFIDENT = torch.tensor([[0.65, 0.35], [0.65, 0.35], [0.95, 0.05], [0.05, 0.95]]).log()
LABELS = torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize(("bins", "expected"), [(2, 0.05), (4, 0.1)])
def test_calibration_error_of_four_predictions(bins, expected):
    """Confidences .65, .65, .95, .95, right but for the second one.

    Two bins: all in the upper one, |3/4 - .8| = .05. Four bins: two of |1/2 - .65| = .15, two of
    |1 - .95| = .05, the mean is .1.
    """
    metric = metric_of({"name": "calibration_error", "bins": bins})
    assert metric.value(CONFIDENT, LABELS) == pytest.approx(expected, abs=1e-6)
    assert metric.better == "smaller"


def test_likelihood_of_four_predictions():
    value = metric_of("negative_log_likelihood").value(CONFIDENT, LABELS)
    assert value == pytest.approx(-(log(0.65) + log(0.35) + 2 * log(0.95)) / 4, rel=1e-6)


def test_top_k_counts_the_k_largest_logits():
    """The true class 2 is third, second, first of four."""
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0], [0.0, 3.0, 2.0, 1.0], [0.0, 1.0, 3.0, 2.0]])
    labels = torch.tensor([2, 2, 2])
    values = [metric_of({"name": "top_k_accuracy", "k": k}).value(logits, labels) for k in (1, 2, 3)]
    assert values == pytest.approx([1 / 3, 2 / 3, 1], abs=1e-6)


@pytest.mark.parametrize("name", ["macro_f1", "calibration_error", AUROC])
def test_where_a_row_of_logits_predicts_nothing_there_is_no_value(name):
    """AMP counts it as wrong, but its `argmax` is a class. A row with -inf predicts another class."""
    for logit, known in ((nan, False), (inf, False), (-inf, True)):
        logits = torch.cat([torch.tensor([[0.0, logit]]), CONFIDENT[1:]])
        assert isfinite(metric_of(name).value(logits, LABELS)) == known


def test_function_of_torchmetrics_is_a_metric_with_its_options():
    """Class 1 is the positive one: of its four pairs (.4, .35 and .8 against .1, .4) three are in order."""
    scores = torch.tensor([0.1, 0.4, 0.35, 0.8])
    logits = torch.stack([torch.zeros(4), torch.logit(scores)], dim=1)
    metric = metric_of({"name": AUROC, "average": "weighted"})
    assert metric.value(logits, torch.tensor([0, 0, 1, 1])) == pytest.approx(3 / 4)
    assert (metric.title, metric.better) == ("multiclass_auroc", "larger")


def test_torchmetrics_never_takes_logits_for_probabilities():
    """Logits in [0, 1] mean what they mean elsewhere: softmax of (1, 0) is 1 / (1 + 1/e), and right."""
    name = "torchmetrics.functional.classification:multiclass_calibration_error"
    metric = metric_of({"name": name, "n_bins": 1, "label": "ece"})
    value = metric.value(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    assert value == pytest.approx(1 - 1 / (1 + torch.e**-1), abs=1e-6)
    assert (metric.title, metric.better) == ("ece", "smaller")


@pytest.fixture
def own(own_module):
    torchmetrics_functions.classification()  # mends the import of a torchvision that does not fit
    own_module("own_metrics", OWN)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (["makro_f1"], r"metrics\.0\.name: 'makro_f1' is not known. Did you mean macro_f1\?"),
        (["own_metrics:many"], r"own_metrics:many, tried on 60 made-up .*gives a tensor of shape \[3\]; exp"),
        (["own_metrics:nothing"], "gives None; expected a number"),
        (["own_metrics:undefined"], "gives nan, then nan; expected the same finite number"),
        (["own_metrics:resampled"], r"gives [\d.]+, then [\d.]+; expected the same finite number"),
        (["own_metrics:broken"], r"IndexError: list index out of range \(.*own_metrics.py, line 14\)"),
        (["own_metrics:clashing"], "own_metrics:clashing has an option label, which is the recipe's own"),
        (["own_metrics:unmarked"], "own_metrics:unmarked is not a function marked @rayfed_kd.metric"),
        (["shutil:rmtree"], "shutil:rmtree is not a function marked @rayfed_kd.metric, and was not called"),
        (["torchmetrics:F1Score"], "torchmetrics:F1Score is not a function marked @rayfed_kd.metric"),
        ([{"name": "own_metrics:broken", "plaec": 1}], r"Did you mean evaluation\.metrics\.0\.place\?"),
        ([{"name": "macro_f1", "better": "less"}], r"metrics\.0\.better = 'less': expected 'larger' or 'sma"),
        ([{"name": "macro_f1", "label": "a/b"}], r"metrics\.0\.label: 'a/b': expected a letter, then"),
        ([{"name": AUROC, "average": "none"}], r"gives a tensor of shape \[3\]; expected a number"),
        ([{"name": AUROC, "avrage": "macro"}], r"Did you mean evaluation\.metrics\.0\.average\?"),
        ([AUROC.replace("roc", "rok")], "has no 'multiclass_aurok'. Did you mean multiclass_auroc"),
        (["macro_f1", "macro_f1"], "two metrics are called macro_f1; a label tells them apart"),
        ("macro_f1", r"metrics = 'macro_f1': expected a list, as 'evaluation\.metrics=\[macro_f1\]'"),
        ([3], r"evaluation\.metrics\.0 = 3: expected keys below it"),
    ],
)
def test_metric_that_cannot_be_is_refused_before_the_first_round(metrics, message):
    with pytest.raises(RecipeError, match=message):
        rayfed_kd.prepare({**RECIPE, "evaluation": {"metrics": metrics}})


@pytest.mark.usefixtures("own")
def test_metric_that_changes_its_logits_changes_no_other_one():
    logits = torch.ones(2, 3)
    assert metric_of("own_metrics:spoiling").value(logits, torch.zeros(2, dtype=torch.int64)) == 2.0
    assert torch.equal(logits, torch.ones(2, 3))


def test_missing_torchmetrics_is_named(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'torchmetrics'", name="torchmetrics")

    monkeypatch.setattr(torchmetrics_functions, "importlib", SimpleNamespace(import_module=missing))
    with pytest.raises(RecipeError, match="needs torchmetrics, which is missing: pip install"):
        rayfed_kd.prepare({**RECIPE, "evaluation": {"metrics": ["macro_f1"]}})
