"""FedDisco: discrepancies and weights by hand, identities with FedAvg, what travels once."""

import numpy as np
import pytest
import torch

from rayfed_kd.algorithms.feddisco import FedDisco, Options, ServerState, collaboration, discrepancy

COUNTS = [[40.0, 10.0, 0.0], [10.0, 10.0, 10.0], [0.0, 0.0, 20.0]]
SAMPLES = [50.0, 30.0, 20.0]
KL = [0.5982098651, 0.0, 1.0986122887]
L2 = [0.5887840578, 0.0, 0.8164965809]
LENET5 = 21_386  # parameters for 8x8 digits


def normalised(weights):
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize(("metric", "expected"), [("kl", KL), ("kl_normalised", KL), ("l2", L2)])
def test_discrepancy_of_label_counts_by_hand(metric, expected):
    """Three classes; (40, 10, 0): log 3 + .8 log .8 + .2 log .2; one class alone: log 3."""
    found = [discrepancy(torch.tensor(counts), metric).item() for counts in COUNTS]
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "told", "expected"),
    [
        ({"metric": "kl_normalised"}, KL, [0.5144018753, 0.4855981247, 0.0]),
        ({"metric": "kl"}, KL, [0.4293011628, 0.5706988372, 0.0]),
        ({"metric": "l2"}, L2, [0.4331129801, 0.5668870199, 0.0]),
        ({"a": 0.0, "b": 0.1}, KL, [0.4615384615, 0.3076923077, 0.2307692308]),
    ],
)
def test_weights_by_hand(options, told, expected):
    """a .5, b .1; normalised KL is 0.3525471799, 0, 0.6474528201; with a 0: .6, .4, .3 over 1.3."""
    weights = collaboration(SAMPLES, told, Options(**options))
    assert normalised(weights) == pytest.approx(expected, abs=1e-9)


def test_equal_discrepancies_with_b_equal_a_times_d_are_fedavg():
    weights = collaboration(SAMPLES, [0.4, 0.4, 0.4], Options(a=0.5, b=0.2, metric="kl"))
    assert normalised(weights) == pytest.approx([0.5, 0.3, 0.2], rel=1e-12)


def test_nothing_weighed_is_fedavg(train):
    ours = train({"name": "feddisco", "a": 0.0, "b": 0.0})["global"]
    torch.testing.assert_close(ours, train({"name": "fedavg"})["global"], rtol=1e-6, atol=1e-7)


def test_average_uses_the_weights(made_replies, bench):
    """Discrepancies as above, w = 1, 2, 4: 0.5144018753 + 2 x 0.4855981247."""
    rows = [({"student": [w], "discrepancy": d}, n) for w, d, n in zip((1, 2, 4), KL, SAMPLES, strict=True)]
    ctx = bench({"name": "feddisco"}).server()
    after = FedDisco().absorb(ServerState(torch.zeros(1), {}), made_replies(*rows), ctx)
    assert after.weights.item() == pytest.approx(0.5144018753 + 2 * 0.4855981247, abs=1e-6)
    assert ctx.logged()["all_cut"] == (0.0, 1)


def test_where_all_are_cut_the_average_is_fedavgs_and_counted(made_replies, bench):
    rows = [({"student": [w], "discrepancy": 1.0}, n) for w, n in ((1, 10), (2, 30), (4, 60))]
    ctx = bench({"name": "feddisco"}).server()
    method = FedDisco(Options(a=3.0, b=0.0, metric="kl"))
    after = method.absorb(ServerState(torch.zeros(1), {}), made_replies(*rows), ctx)
    assert after.weights.item() == pytest.approx(3.1)
    assert ctx.logged()["all_cut"] == (1.0, 1)


def test_uniform_cohort_is_normalised_without_a_division_by_zero():
    assert collaboration([1.0, 3.0], [0.0, 0.0], Options()) == pytest.approx([0.35, 0.85])


def test_client_without_samples_counts_for_nothing():
    assert collaboration([0.0, 10.0], [0.0, 0.2], Options(metric="kl")) == pytest.approx([0.0, 1.0])
    assert discrepancy(torch.zeros(3), "kl").isfinite()


def test_discrepancy_is_told_once_by_the_client_that_the_counts_belong_to(bench):
    """Counts are those of the client's training samples; the server remembers who has told."""
    table = bench({"name": "feddisco", "metric": "kl"})
    server, replies = table.first_exchange(0, 2)
    server = table.method.absorb(server, replies, table.server())
    labels = table.setting.dataset.train.labels
    for client in (0, 2):
        counts = np.bincount(labels[table.setting.partition.train[client]], minlength=10)
        share = counts[counts > 0] / counts.sum()
        expected = np.log(10) + (share * np.log(share)).sum()
        assert server.discrepancies[client] == pytest.approx(expected, rel=1e-5)
    again = table.exchange(server, [0, 1], 2)
    assert ["discrepancy" in reply for reply in again] == [False, True]
    assert set(table.method.absorb(server, again, table.server(2)).discrepancies) == {0, 1, 2}


def test_bytes_of_a_round_are_two_models_and_once_four_bytes_a_client(run_small):
    rows = run_small({"name": "feddisco"}, "sampling.fraction=1.0").tables["rounds"].to_pylist()
    assert [row["bytes_up"] for row in rows] == [5 * 4 * (LENET5 + 1)] + [5 * 4 * LENET5] * 2
    assert {row["bytes_down"] for row in rows} == {5 * 4 * LENET5}
