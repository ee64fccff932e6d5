"""TAKFL: losses and merges by hand, the identities with FedAvg and FedDF, absent prototypes, what travels."""

import numpy as np
import pytest
import torch
from runs import run_in_process
from small_recipes import MADE_UP, UNLABELLED

from rayfed_kd.algorithms.takfl import TAKFL, Options, merged
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare

# Logits of a teacher, of the student before, and of the student.
TEACHER = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
BEFORE = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
STUDENT = torch.tensor([[1.0, 0.5, 0.0]], dtype=torch.float64)
PUBLIC = "partition.public={count: 100, labels: false}"
MODELS = [{"name": "mlp", "hidden": 8}, {"name": "mlp", "hidden": 4}]
# A perceptron of 64 pixels and 3 classes with so many hidden units.
LENGTHS = {hidden: 65 * hidden + 3 * (hidden + 1) for hidden in (8, 4)}
LAST = [0, 0, 0, 1]  # the fourth client alone has the second architecture


@pytest.mark.parametrize(
    ("weight", "total"), [(0.0, 0.3816498482), (0.01, 0.3819295259), (0.5, 0.3956337341)]
)
def test_loss_by_hand(weight, total):
    said = torch.stack([TEACHER, BEFORE], 1)
    method = TAKFL(Options(batchnorm="update"))
    loss = method.loss(weight, {"student": lambda images: STUDENT}, {"images": STUDENT, "said": said}, {})
    assert loss.value.item() == pytest.approx(total, abs=1e-9)
    assert loss.logged["self_distillation"].item() == pytest.approx(0.0279677718, abs=1e-9)


def test_task_vectors_add_up():
    start, results = torch.tensor([1.0]), [torch.tensor([1.2]), torch.tensor([0.7])]
    assert merged(start, results, [0.25, 0.75]).item() == pytest.approx(0.825)
    assert torch.equal(merged(start, results, [0.0, 0.0]), start)
    assert merged(start, results, [0.0, 1.0]) is results[1]  # no rounding of w + (w' - w)


def several(assign="cycle", **options):
    models = {"models": MODELS, "assign": assign}
    method = {"name": "takfl", "optimizer": {"lr": 0.01}, "epochs": 2, **options}
    return {**MADE_UP, "partition": UNLABELLED, "client_models": models, "method": method}


@pytest.mark.parametrize("none", [{"epochs": 0}, {"lambdas": [[0.0]]}])
def test_without_distillation_it_is_fedavg_bit_for_bit(none, run_small):
    ours, plain = (
        run_small(method, PUBLIC).models["global"]
        for method in ({"name": "takfl", **none}, {"name": "fedavg"})
    )
    assert np.array_equal(ours, plain)


def test_without_distillation_a_prototype_of_one_client_is_its_own_training_bit_for_bit(client_states):
    ours = run_in_process(several(LAST, lambdas=[[0.0, 0.0], [0.0, 0.0]])).models
    alone = client_states({**several(LAST), "method": {"name": "standalone"}})
    assert np.array_equal(ours["prototype_2"], alone[3].numpy())


def test_one_prototype_with_its_own_ensemble_is_feddf(run_small):
    sgd = {"name": "sgd", "lr": 1.0}  # Adam's first steps turn on the sign of rounding where a gradient is 0
    shared = {"temperature": 3.0, "epochs": 2, "batch_size": 32, "optimizer": sgd}
    ours = run_small({"name": "takfl", "self_weight": [0.0], "lambdas": [[1.0]], **shared}, PUBLIC)
    feddf = run_small({"name": "feddf", "schedule": "constant", "clip": None, **shared}, PUBLIC)
    plain = run_small({"name": "fedavg"}, PUBLIC).models["global"]
    assert np.abs(feddf.models["global"] - plain).max() > 0.002
    np.testing.assert_allclose(ours.models["global"], feddf.models["global"], atol=1e-5)


def test_students_are_taught_by_each_prototype_apart():
    """Rows of lambda one by one: the uniform mix is the mean of what each teacher alone makes."""
    first, second, both = (
        run_in_process(several(lambdas=rows), "rounds=1").models
        for rows in ([[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2, [[0.5, 0.5]] * 2)
    )
    for name in ("prototype_1", "prototype_2"):
        assert not np.allclose(first[name], second[name], atol=1e-4)
        np.testing.assert_allclose(both[name], (first[name] + second[name]) / 2, atol=1e-6)
    uniform = run_in_process(several(), "rounds=1").models
    assert all(np.array_equal(uniform[name], both[name]) for name in both)


def test_a_prototype_without_a_reply_teaches_nobody_and_learns():
    recipe = several(LAST)
    setting = prepare(recipe).setting
    uniform = run_in_process(recipe, "rounds=1", "sampling={count: 1}")
    (client,) = {row["client"] for row in uniform.tables["messages"].to_pylist()}
    assert client != 3
    alone = run_in_process(several(LAST, lambdas=[[1.0, 0.0]] * 2), "rounds=1", "sampling={count: 1}").models
    assert all(np.array_equal(uniform.models[name], alone[name]) for name in alone)
    absent = setting.module_pool().initial_vector(setting.models_by_client[3]).numpy()
    assert not np.array_equal(alone["prototype_2"], absent)
    unseen = run_in_process(several(LAST, lambdas=[[0.0, 1.0]] * 2), "rounds=1", "sampling={count: 1}").models
    assert np.array_equal(unseen["prototype_2"], absent)


def test_each_client_exchanges_its_own_prototype():
    table = run_in_process(several(LAST)).tables["messages"].to_pylist()
    rows = [row for row in table if row["kind"] == "weights"]
    assert len(rows) == 2 * 2 * 4
    assert {(row["client"], row["bytes"]) for row in rows} == {
        (client, 4 * LENGTHS[8 if client < 3 else 4]) for client in range(4)
    }


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"lambdas": [[1.0, 0.0]]}, "method.lambdas: expected 2 rows of 2 numbers"),
        ({"self_weight": [0.1, 0.1, 0.1]}, "method.self_weight = .*: expected 1 number, or 2"),
        ({"self_weight": [-1.0]}, "none below 0"),
    ],
)
def test_options_that_do_not_fit_the_prototypes_are_refused(option, message):
    with pytest.raises(RecipeError, match=message):
        prepare(several(**option))
