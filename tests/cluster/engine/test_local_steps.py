"""`local.steps` and parts of an epoch: the same batches as whole epochs where they are as many."""

import pytest
from runs import run_in_process
from small_recipes import TWO_LENETS, assert_same_run, small_recipe

from rayfed_kd.algorithms import METHODS
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.recipe.registry import load_object
from rayfed_kd.recipe.sections.local_training import LocalRecipe

# Methods that divide local training by epochs, with the options that make them do so.
DIVIDE = {
    "fedgen": {},
    "fedd2s": {},
    "fedrep": {},
    "fedrep_plus": {},
    "fd": {"means": "training"},
    "fedkf": {"steps_per_epoch": "equal"},
    "dafkd": {"adversarial_epochs": 1},
}
ALWAYS = ("fedgen", "fedd2s", "fedrep", "fedrep_plus")
# Passes over fewer samples than the client has, as some are held out; no local training at all.
OTHERS = ("fedl2g", "fens", "fedpft")
RECIPE = {**TWO_LENETS, "local": {"batch_size": 8, "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.5}}}


def recipe_of(method, **local):
    recipe = small_recipe(RECIPE, method)
    return {**recipe, "local": {**RECIPE["local"], **local}}


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in METHODS if name not in (*ALWAYS, *OTHERS)])
def test_as_many_steps_as_whole_epochs_have_batches_are_the_same_training(method):
    assert_same_training(method)


@pytest.mark.parametrize("method", ["fedavg", "kdia", "fedcog", "dafkd"])
def test_steps_reach_the_batches_of_each_form(method):
    """Batches alone, with labels from a pool, beside generated ones, with an adversary."""
    assert_same_training(method)


def assert_same_training(method):
    recipe = recipe_of(method, epochs=2)
    sizes = prepare(recipe).setting.partition.sizes.tolist()
    batches = {-(-samples // 8) for samples in sizes}
    assert len(batches) == 1
    steps = 2 * batches.pop()
    whole = run_in_process(recipe)
    assert_same_run(run_in_process(recipe_of(method, steps=steps)), whole)
    cut = run_in_process(recipe_of(method, steps=steps - 1))
    assert_same_run(run_in_process(recipe_of(method, epochs=(steps - 1) / steps * 2)), cut)
    # The last batch of the second pass is left out, and other numbers come of it.
    with pytest.raises(AssertionError):
        assert_same_run(cut, whole)


@pytest.mark.parametrize("local", [{"steps": 3}, {"epochs": 1.5}])
@pytest.mark.parametrize("method", DIVIDE)
def test_methods_that_divide_epochs_refuse_what_is_not_whole(method, local):
    recipe = recipe_of(method, **local)
    recipe["method"] = {**recipe["method"], **DIVIDE[method]}
    with pytest.raises(RecipeError, match=rf"local\.{next(iter(local))} = .*: {method} with these options"):
        prepare(recipe)


@pytest.mark.parametrize("method", METHODS)
def test_only_these_divide_epochs_with_their_defaults(method):
    kind = load_object(METHODS[method], "")
    assert kind().whole_epochs == (method in (*ALWAYS, "fd"))


@pytest.mark.parametrize(
    ("local", "steps", "passes", "samples"),
    [
        ({"epochs": 2}, 6, 2, 40),  # 20 samples in batches of 8, 8 and 4
        ({"epochs": 0.5}, 2, 1, 16),  # 1.5 batches, rounded up
        ({"epochs": 0.01}, 1, 1, 8),
        ({"epochs": 1.4}, 5, 2, 36),  # 4.2 batches: 20 samples, then 8 and 8
        ({"steps": 4}, 4, 2, 28),
        ({"epochs": 2, "last_batch": "drop"}, 4, 2, 32),
        ({"steps": 3, "last_batch": "join"}, 3, 2, 28),  # 8 and 12, then 8
    ],
)
def test_counts_of_one_client(local, steps, passes, samples):
    counted = LocalRecipe(batch_size=8, **local)
    found = counted.steps_of(20), counted.passes_of(20), counted.samples_of(20)
    assert found == (steps, passes, samples)
    assert counted.steps_of(0) == counted.passes_of(0) == counted.samples_of(0) == 0


def test_a_part_of_an_epoch_is_no_batch_more_by_rounding():
    """0.07 * 100 is 7.000000000000001."""
    assert LocalRecipe(batch_size=1, epochs=0.07).steps_of(100) == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["local.epochs=0"], r"local\.epochs = 0: expected a number above 0"),
        (["local.steps=0"], r"local\.steps = 0: expected a number of at least 1"),
        (["local.epochs=1", "local.steps=2"], r"local: epochs = 1 and steps = 2: expected one of the two"),
        (["local.epochs=null"], r"local: epochs = null: expected a number, or one for steps"),
        (
            ["local.steps=2", "local.lr_schedule.epochs={name: cosine}"],
            r"local: lr_schedule\.epochs counts whole epochs, and steps = 2; expected",
        ),
    ],
)
def test_what_says_no_length_is_refused(changes, message):
    with pytest.raises(RecipeError, match=message):
        prepare(recipe_of("fedavg"), changes)


def test_rates_over_steps_end_with_the_last_step():
    """Cosine over five steps: factors (1 + cos(pi i / 5)) / 2 for i from 0 to 4."""
    rates = {"steps": {"name": "cosine"}}
    optimizer = LocalRecipe(batch_size=8, steps=5, lr_schedule=rates).of_client(20).optimizer
    found = [optimizer.pace.factor(step) for step in range(5)]
    assert found == pytest.approx([1.0, 0.9045085, 0.6545085, 0.3454915, 0.0954915])
