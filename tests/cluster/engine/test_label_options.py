"""`local.label_smoothing` and `local.class_weights` reach the loss on labels of every method that says so."""

import pytest
import torch
from contexts import client_context
from runs import run_in_process
from small_recipes import TWO_LENETS, assert_same_run, small_recipe

from rayfed_kd.algorithms import METHODS
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import DispatchFacts
from rayfed_kd.recipe.registry import load_object
from rayfed_kd.toolbox.local_training import label_options

RECIPE = {**TWO_LENETS, "local": {"epochs": 1, "batch_size": 16, "optimizer": {"name": "sgd", "lr": 0.05}}}
TAKE = [name for name, location in METHODS.items() if load_object(location, "").label_options]
OTHERS = ["ccvr", "datafree", "fedgkt", "fedict", "fedpft", "qffl"]


def test_methods_that_take_them_are_all_but_these():
    assert sorted(set(METHODS) - set(TAKE)) == OTHERS
    assert not type("Derived", (load_object(METHODS["fedavg"], ""),), {}).label_options


@pytest.mark.slow
@pytest.mark.parametrize("method", TAKE)
def test_label_options_change_a_methods_training(method):
    assert_changes_training(method)


@pytest.mark.parametrize("method", ["fedavg", "kdia", "fedftg"])
def test_they_reach_each_form_of_local_training(method):
    """In a batch's loss, beside normalisation that it is given, and in a loop of the method's own."""
    options = {"clip": 10.0} if method == "fedftg" else {}
    assert_changes_training(method, **options)


def assert_changes_training(method, **options):
    recipe = small_recipe(RECIPE, method, **options)
    plain = run_in_process(recipe)
    for change in ("local.label_smoothing=0.3", "local.class_weights=[1.0, 4.0, 1.0]"):
        with pytest.raises(AssertionError):
            assert_same_run(run_in_process(recipe, change), plain)


@pytest.mark.parametrize("method", OTHERS)
def test_others_refuse_them(method):
    recipe = small_recipe(RECIPE, method)
    with pytest.raises(RecipeError, match=rf"local\.label_smoothing.*{method} does not say"):
        prepare(recipe, ["local.label_smoothing=0.1"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("local.class_weights=[1.0, 2.0]", r"local\.class_weights.*expected 3 numbers, one for each class"),
        ("local.class_weights=[1.0, 0.0, 1.0]", r"local\.class_weights.*expected a number above 0"),
        ("local.label_smoothing=1.0", r"local\.label_smoothing = 1\.0: expected"),
    ],
)
def test_what_gives_no_loss_is_refused(change, message):
    with pytest.raises(RecipeError, match=message):
        prepare(small_recipe(RECIPE, "fedavg"), [change])


def test_balanced_weights_are_of_the_clients_own_counts():
    """n_k / (C n_k^c), and 0 for a class that the client lacks, of which no batch has a sample."""
    partition = "partition={name: classes, classes_per_client: 2, clients: 3}"
    setting = prepare(small_recipe(RECIPE, "fedavg"), [partition, "local.class_weights=balanced"]).setting
    ctx = client_context(setting, DispatchFacts(0, 1, 1))
    counts, found = ctx.label_counts(), label_options(ctx)
    assert (counts == 0).sum() == 1
    wanted = [0.0 if c == 0 else ctx.num_samples / (3 * c) for c in counts.tolist()]
    torch.testing.assert_close(found["class_weights"], torch.tensor(wanted))
    assert found["label_smoothing"] == 0
