"""DENSE: the generator's loss by hand, the identities, what travels, several exchanges."""

import pytest
import torch
from runs import run_in_process
from small_recipes import ONE_SHOT as FEW

from rayfed_kd.algorithms.dense import disagreement
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.toolbox.data_free.synthesis import StudentOptimizer
from rayfed_kd.toolbox.losses import cross_entropy, distillation

SAID = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
OTHER = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
CHANGES = ("model={name: mlp, hidden: 8}", "rounds=1", "local.epochs=1", "evaluation.every=1")


def test_generators_loss_by_hand():
    """z_e (2, 0, -1), z_s (0, 1, 0), y 0, statistics off by 0.5: 0.1698460196 + 0.5 - 0.9129828979."""
    apart = disagreement(SAID, OTHER)
    assert apart.item() == pytest.approx(0.9129828979, abs=1e-9)
    loss = cross_entropy(SAID, torch.tensor([0])) + 0.5 - apart
    assert loss.item() == pytest.approx(-0.2431368783, abs=1e-9)


def test_where_the_largest_classes_agree_nothing_is_apart():
    """The mean is over the whole batch."""
    assert disagreement(SAID, torch.tensor([[1.0, 0.5, 0.0]]).double()).item() == 0
    both = disagreement(SAID.repeat(2, 1), torch.cat([OTHER, SAID / 2]))
    assert both.item() == pytest.approx(0.9129828979 / 2, abs=1e-9)


def test_students_loss_at_temperature_three_by_hand():
    assert distillation(SAID, OTHER, 3.0).item() == pytest.approx(1.0986411817, abs=1e-8)


def test_another_optimiser_has_not_the_momentum_of_sgd():
    for name, momentum in (("adam", 0.0), ("rmsprop", 0.0), ("sgd", 0.9)):
        assert StudentOptimizer.model_validate({"name": name}).momentum == momentum


def test_without_epochs_the_student_is_the_initial_model(small, bench):
    result = run_in_process({**small, "method": {"name": "dense", **FEW, "epochs": 0}}, *CHANGES)
    start = bench({"name": "dense"}, *CHANGES).server().initial_vector()
    assert torch.equal(torch.as_tensor(result.models["student"]), start)


def test_student_learns_what_one_teacher_knows(small):
    """Data-free distillation of one client's model: far better than guessing among ten."""
    recipe = {
        **small,
        "method": {
            "name": "dense",
            **FEW,
            "epochs": 20,
            "images": 64,
            "batch_size": 64,
            "generator_steps": 8,
        },
        "data": {"name": "digits"},
        "partition": {"name": "iid", "clients": 1},
    }
    recipe["method"] |= {
        "generator": {**FEW["generator"], "width": 16, "lr": 0.01},
        "optimizer": {"lr": 0.05},
    }
    result = run_in_process(recipe, *CHANGES, "local.epochs=5", "sampling={count: 1}")
    (row,) = (row for row in result.rows["metrics"] if row["model"] == "student")
    assert row["amp"] > 0.3


def test_clients_of_any_architectures_send_their_models_once_and_nothing_goes_down(small):
    models = [{"name": "lenet5"}, {"name": "bottleneck_resnet", "width": 2}]
    recipe = {**small, "method": {"name": "dense", **FEW}, "client_models": {"models": models}}
    result = run_in_process(recipe, *CHANGES)
    rows = [row for row in result.rows["messages"] if row["kind"] == "weights"]
    assert {row["direction"] for row in rows} == {"up"}
    assert len({row["bytes"] for row in rows}) == 2
    setting = prepare(recipe, CHANGES).setting
    pool = setting.module_pool()
    for row in rows:
        assert row["bytes"] == 4 * pool.initial_vector(setting.architectures.of_client(row["client"])).numel()
    assert set(result.models) == {"student"}
    assert result.models["student"].size == pool.initial_vector("model").numel()


def test_further_exchanges_start_from_the_student(bench):
    table = bench({"name": "dense", **FEW}, *CHANGES[:1], "rounds=2")
    method, server = table.method, table.method.init_server(table.server(0))
    assert not method.dispatch(server, table.server(1)).parts
    server = method.absorb(server, table.exchange(server, [0, 1]), table.server(1))
    assert torch.equal(method.dispatch(server, table.server(2))["student"], server.student)


def test_several_exchanges_with_models_that_cannot_start_from_the_student_are_refused(small):
    recipe = {**small, "method": {"name": "dense", **FEW}, "client_models": {"models": [{"name": "lenet5"}]}}
    with pytest.raises(RecipeError, match="rounds = 2: clients with client_models cannot start"):
        prepare(recipe, ["model={name: mlp}", "rounds=2"])
    prepare(recipe, ["model={name: mlp}", "rounds=1"])


def test_images_are_shown_with_the_classes_asked_for(bench):
    table = bench({"name": "dense", **FEW}, *CHANGES)
    method, server = table.method, table.method.init_server(table.server(0))
    assert method.shown(server, None, table.server(1)) == {}
    server = method.absorb(server, table.exchange(server, [0, 1]), table.server(1))
    shown = method.shown(server, None, table.server(1))["samples"]
    assert shown.images.shape == (8, 1, 8, 8)
    assert 0 <= float(shown.images.min()) <= float(shown.images.max()) <= 1
