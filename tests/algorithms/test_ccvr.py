"""CCVR: the method inside is as it is alone, calibration written a second time, what travels, refusals."""

import pickle

import pytest
import torch
from runs import run_in_process
from torch import nn

from rayfed_kd.algorithms.ccvr import CCVR, Options, moments, pooled_moments, virtual_features
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare

MLP = "model={name: mlp, hidden: 8}"
HEAD = 90  # 10 x 8 weights and 10 biases
CHANGES = (MLP, "rounds=2", "local.epochs=1", "evaluation.every=1")


def vectors(result):
    return {name: torch.as_tensor(vector) for name, vector in result.models.items()}


@pytest.mark.parametrize("inside", [{"name": "fedavg"}, {"name": "moon"}, {"name": "fedprox", "mu": 0.1}])
def test_method_inside_is_as_it_is_alone_and_no_epochs_leave_its_model_bit_for_bit(inside, small):
    method = {"name": "ccvr", "method": inside, "epochs": 0}
    around = vectors(run_in_process({**small, "method": method}, *CHANGES))
    alone = vectors(run_in_process({**small, "method": inside}, *CHANGES))
    (name,) = alone
    assert set(around) == {name, f"{name}_ccvr"}
    for model in around.values():
        assert torch.equal(model, alone[name])


def test_calibration_written_a_second_time_with_torchs_own_layer(small, bench):
    """All clients take part, so the moments are those of all training samples in one place."""
    options = {"samples_per_class": 30, "epochs": 2, "batch_size": 16}
    recipe = {**small, "method": {"name": "ccvr", **options}}
    found = vectors(run_in_process(recipe, *CHANGES, "sampling.fraction=1.0"))
    table = bench({"name": "fedavg"}, *CHANGES)
    ctx = table.server(2)
    model = ctx.frozen_model(found["global"])
    told = []
    for client in range(5):
        batches = [(model.features(images), labels) for images, labels in table.client(client).samples()]
        told.append(moments(*(torch.cat(list(column)) for column in zip(*batches, strict=True))))
    stream = ctx.stream("virtual")
    rows, labels = virtual_features(pooled_moments(told), 30, stream)
    layer = nn.Linear(8, 10)
    with torch.no_grad():
        layer.weight.copy_(found["global"][-HEAD:-10].view(10, 8))
        layer.bias.copy_(found["global"][-10:])
    sgd = torch.optim.SGD(layer.parameters(), lr=0.05, momentum=0.5)
    for _ in range(2):
        for batch in torch.split(torch.randperm(len(rows), generator=stream), 16):
            sgd.zero_grad()
            nn.functional.cross_entropy(layer(rows[batch]), labels[batch]).backward()
            sgd.step()
    trained = torch.cat([layer.weight.detach().flatten(), layer.bias.detach()])
    torch.testing.assert_close(found["global_ccvr"][-HEAD:], trained, atol=1e-5, rtol=1e-4)
    assert torch.equal(found["global_ccvr"][:-HEAD], found["global"][:-HEAD])
    assert not torch.equal(found["global_ccvr"][-HEAD:], found["global"][-HEAD:])


def test_last_round_alone_is_calibrated_and_its_bytes_are_the_formulas(small):
    recipe = {
        **small,
        "method": {"name": "ccvr"},
        "partition": {"name": "classes", "classes_per_client": 3, "clients": 5},
    }
    result = run_in_process(recipe, *CHANGES)
    shown = {(row["round"], row["model"]) for row in result.rows["metrics"]}
    assert shown == {(1, "global"), (2, "global"), (2, "global_ccvr")}
    counted = {}
    for row in result.rows["messages"]:
        key = row["round"], row["direction"], row["kind"]
        counted.setdefault(key, []).append(row["bytes"])
    size = 4 * result.models["global"].size
    assert set(counted[1, "down", "weights"]) == {size}
    assert set(counted[2, "down", "weights"]) == {2 * size}
    assert (1, "up", "prototypes") not in counted
    assert set(counted[2, "up", "prototypes"]) == {4 * 3 * (8 + 8 * 9 // 2)}
    assert set(counted[2, "up", "labels"]) == set(counted[2, "up", "counts"]) == {4 * 3}


def test_every_so_many_rounds_are_calibrated(small):
    result = run_in_process({**small, "method": {"name": "ccvr", "every": 2}}, *CHANGES, "rounds=3")
    shown = [row["round"] for row in result.rows["metrics"] if row["model"] == "global_ccvr"]
    assert shown == [2]


def test_model_that_is_calibrated_can_be_named(small):
    method = {"name": "ccvr", "model": "oca", "method": {"name": "fedavg", "track_oca": True}}
    result = run_in_process({**small, "method": method}, *CHANGES, "rounds=1")
    assert set(result.models) == {"global", "oca", "oca_ccvr"}


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ({"method": {"name": "fedproto"}}, "no shared model at all; that method has its clients' own"),
        ({"model": "oca"}, "no shared model oca; that method has global"),
        ({"method": {"name": "fedprx"}}, r"method\.method\.name: 'fedprx' is not known.*fedprox"),
        ({"method": {"name": "fedprox", "nu": 1}}, r"method\.method\.nu is no option of fedprox"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(method, said, small):
    with pytest.raises(RecipeError, match=said):
        prepare({**small, "method": {"name": "ccvr", **method}})


@pytest.mark.parametrize(
    ("inside", "change", "said"),
    [
        ({"name": "fedavg", "aggregation": "trimmed_mean"}, [], "of . clients a round it cuts off none"),
        ({"name": "fedavg", "aggregation": "krum", "corrupt": 9}, [], "needs 21 clients a round"),
        (
            {"name": "fedgen"},
            ["local.epochs=null", "local.steps=10"],
            "by whole epochs; expected local.epochs",
        ),
        ({"name": "fedavg"}, ["sampling.poisson=true"], "a round may have no client, and ccvr then"),
    ],
)
def test_checks_of_the_method_inside_hold(inside, change, said, small):
    with pytest.raises(RecipeError, match=said):
        prepare({**small, "method": {"name": "ccvr", "method": inside}}, change)


def test_what_the_method_inside_never_begins_is_said(small):
    inside = {"name": "fedkf", "warmup_rounds": 30}
    setting = prepare({**small, "method": {"name": "ccvr", "method": inside}}).setting
    assert any("warmup_rounds = 30: the run has" in note for note in setting.notes)


def test_what_the_method_inside_needs_is_asked_for(small):
    with pytest.raises(RecipeError, match=r"partition\.public is missing"):
        prepare({**small, "method": {"name": "ccvr", "method": {"name": "feddf"}}})
    several = ["schedule={name: fedasync}", "clock={name: simulated}"]
    with pytest.raises(RecipeError, match="several exchanges"):
        prepare({**small, "method": {"name": "ccvr"}}, several)


def test_it_speaks_for_the_method_inside_also_where_it_was_sent():
    method = CCVR(Options(method={"name": "moon"}))
    for one in (method, pickle.loads(pickle.dumps(method))):
        assert one.client_keeps == one.inside.client_keeps != CCVR.client_keeps
        assert set(one.inside.up) < set(one.up)
        assert one.client_update.__self__ is one.inside
        with pytest.raises(AttributeError, match="no_such_step"):
            one.no_such_step  # noqa: B018
