"""FedProto: who trains on what, what travels, whose prototypes are averaged, both predictions."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from runs import run_in_process

from rayfed_kd.algorithms.fedproto import FedProto, Options
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.toolbox.by_class.means import spread

# Few classes a client, so that classes are missing; every client in every round.
FEW = (
    "model={name: mlp}",
    "partition={name: classes, classes_per_client: 3, clients: 5}",
    "sampling.fraction=1.0",
    "rounds=2",
)


@pytest.fixture
def table(bench):
    return bench({"name": "fedproto"}, *FEW)


def features_by_class(table, client):
    """A second way: the client's model on its images at once, class by class."""
    ctx = table.client(client)
    images, labels = (torch.cat(parts) for parts in zip(*ctx.samples(), strict=True))
    with torch.no_grad():
        features = ctx.frozen_model(table.states[client]).features(images)
    return {int(c): (features[labels == c].mean(0), int((labels == c).sum())) for c in labels.unique()}


def test_prototypes_are_mean_features_of_the_trained_model(table):
    _, replies = table.first_exchange(0, 1)
    for reply in replies:
        expected = features_by_class(table, reply.client)
        assert reply["classes"].tolist() == sorted(expected)
        for label, value, count in zip(reply["classes"], reply["prototypes"], reply["counts"], strict=True):
            torch.testing.assert_close(value, expected[int(label)][0])
            assert count == expected[int(label)][1]


def test_first_round_has_no_term_and_later_ones_have(table):
    server, replies = table.first_exchange(0, 1)
    assert set(table.logs[0]) == {"ce"}
    server = table.method.absorb(server, replies, table.server())
    table.exchange(server, [0, 1], 2)
    assert set(table.logs[0]) == {"ce", "prototype_distance"}


@pytest.mark.parametrize(("distance", "away"), [("mse", 1.5), ("l2sq", 3.0), ("l2", 1 + 5**0.5)])
def test_lambda_weighs_the_distance_by_hand(distance, away):
    """Three samples with two features, all logits equal: CE = log 2; lambda 0.3.

    h = (1, 2), (3, 2), (4, 0), labels 0, 0, 1; P_0 = (2, 1), P_1 = (2, -1). The squared differences (1, 1),
    (1, 1) and (4, 1) have the sum 9: 9 / 6 is their mean over all numbers (mse), 9 / 3 that over samples
    (l2sq). The means of the classes' features are (2, 2) and (4, 0): |(0, 1)| + |(2, 1)| = 1 + sqrt 5 (l2).
    """
    features = torch.tensor([[1.0, 2.0], [3.0, 2.0], [4.0, 0.0]])
    student = SimpleNamespace(features=lambda images: features, classify=lambda h: torch.zeros(len(h), 2))
    batch = {"images": torch.empty(3), "labels": torch.tensor([0, 0, 1])}
    given = {"rows": torch.tensor([[2.0, 1.0], [2.0, -1.0]]), "present": torch.tensor([True, True])}
    method = FedProto(Options(lambda_proto=0.3, distance=distance))
    loss = method.loss({"student": student}, batch, given)
    assert loss.value.item() == pytest.approx(np.log(2) + 0.3 * away, abs=1e-6)
    assert loss.logged["prototype_distance"].item() == pytest.approx(away, abs=1e-6)


def test_lambda_zero_trains_as_stand_alone_bit_for_bit(client_states, small):
    own, alone = (
        client_states({**small, "method": method}, *FEW)
        for method in ({"name": "fedproto", "lambda_proto": 0.0}, {"name": "standalone"})
    )
    assert all(torch.equal(a, b) for a, b in zip(own, alone, strict=True))
    drawn = client_states({**small, "method": {"name": "fedproto"}}, *FEW)
    assert not torch.equal(drawn[0], alone[0])


def test_latest_prototypes_of_all_clients_count_and_with_cohort_the_rounds_alone(table, bench):
    """Client 0 in round 1, client 1 in round 2: its classes, or those of both."""
    for method, both in ((table, True), (bench({"name": "fedproto", "over": "cohort"}, *FEW), False)):
        server = method.method.init_server(method.server())
        seen = []
        for index, client in enumerate((0, 1), start=1):
            replies = method.exchange(server, [client], index)
            server = method.method.absorb(server, replies, method.server(index))
            seen.append(set(replies[0]["classes"].tolist()))
        assert seen[0] != seen[1]
        assert set(server.prototypes.classes.tolist()) == (seen[0] | seen[1] if both else seen[1])


def test_classes_of_nobody_are_never_predicted_and_no_fault(run_small):
    result = run_small({"name": "fedproto"}, *FEW, "sampling={count: 1}", "evaluation.every=1")
    assert not any(row["not_finite"] for row in result.rows["metrics"])


def test_classes_of_nobody_do_not_travel(table):
    server = table.method.init_server(table.server())
    server = table.method.absorb(server, table.exchange(server, [0]), table.server())
    message = table.method.dispatch(server, table.server(2))
    assert len(message["classes"]) == len(message["prototypes"]) == 3


def test_bytes_are_the_formulas(small):
    """Up 4 C_k (K_f + 2), down nothing and then 4 C (K_f + 1); the model has 8 features."""
    result = run_in_process({**small, "method": {"name": "fedproto"}}, *FEW, "model={name: mlp, hidden: 8}")
    rows = [row for row in result.rows["messages"] if row["kind"] != "metadata"]
    counted = {(row["round"], row["client"], row["direction"], row["kind"]): row["bytes"] for row in rows}
    for client in range(5):
        assert counted[1, client, "up", "prototypes"] == 4 * 3 * 8
        assert counted[1, client, "up", "labels"] == counted[1, client, "up", "counts"] == 4 * 3
        assert (1, client, "down", "prototypes") not in counted
        assert counted[2, client, "down", "prototypes"] == 4 * 10 * 8
        assert counted[2, client, "down", "labels"] == 4 * 10


def test_both_predictions_are_those_of_the_clients_models(table, small):
    """`nearest` counts a client's test samples whose nearest prototype is of their class."""
    result = run_in_process({**small, "method": {"name": "fedproto"}}, *FEW, "evaluation.every=1")
    assert {row["model"] for row in result.rows["metrics"]} == {"personal", "nearest"}
    server = table.method.init_server(table.server())
    for index in (1, 2):
        replies = table.exchange(server, range(5), index)
        server = table.method.absorb(server, replies, table.server(index))
    part = table.method.evaluated(server)["nearest"]
    rows, present = spread(server.prototypes.classes, server.prototypes.values, 10)
    for row in result.rows["clients"]:
        if row["model"] != "nearest" or row["round"] != 2:
            continue
        ctx = table.client(row["client"])
        layer = table.module_pool.lend("nearest", part.vector).freeze()
        own = ctx.frozen_model(table.states[row["client"]])
        predict = table.method.composed([own, layer], torch.empty(0))
        indices = torch.from_numpy(table.setting.partition.test[row["client"]])
        images, labels = table.data.gather(indices, "train")
        images = table.data.normalise(images)
        with torch.no_grad():
            features = own.features(images)
            assert torch.equal(predict(images).argmax(1), torch.cdist(features, rows).argmin(1))
        assert present.all()
        assert row["correct"] == int((torch.cdist(features, rows).argmin(1) == labels).sum())


def test_features_of_two_lengths_are_refused_before_the_first_round(small):
    models = "client_models={models: [{name: lenet5}, {name: mlp, hidden: 7}]}"
    with pytest.raises(RecipeError, match=r"client_models: the models' features have lengths 7, 84;"):
        prepare({**small, "method": {"name": "fedproto"}}, [models])


def test_attack_is_refused(small):
    attack = "attack={name: paf, theta: random, clients: [0]}"
    with pytest.raises(RecipeError, match="fedproto sends neither weights nor logits that mean the same"):
        prepare({**small, "method": {"name": "fedproto"}}, [attack])


@pytest.mark.parametrize(
    "schedule",
    ["{name: quorum, min_fraction: 0.6, late: next_round}", "{name: fedbuff, buffer: 2}", "{name: fedasync}"],
)
def test_it_learns_where_replies_come_late_or_alone(schedule, small):
    recipe = {**small, "method": {"name": "fedproto"}, "model": {"name": "mlp"}}
    changes = (f"schedule={schedule}", "clock={name: lognormal}", "rounds=6", "evaluation.every=6")
    rows = run_in_process(recipe, *changes).rows["metrics"]
    (nearest,) = (row["amp"] for row in rows if row["model"] == "nearest")
    assert nearest > 0.3  # of ten classes
