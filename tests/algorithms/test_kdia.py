"""KDIA: the teacher against its direct form, identities, the label rule, who gets gradient, the ledger."""

from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from runs import batches_counted, reply_of, run_in_process, simulation_of
from small_recipes import FIVE_CLIENTS, refused

import rayfed_kd
from rayfed_kd.algorithms.kdia.kdia import KDIA, Options, known_frequencies
from rayfed_kd.algorithms.kdia.participation import combined
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import Replies
from rayfed_kd.toolbox.distillation import train_generator_on_labels
from rayfed_kd.toolbox.slots import Slots

SMALL = {
    **FIVE_CLIENTS,
    "method": {"name": "kdia", "generator": {"width": 8, "epochs": 1, "batches": 3, "batch_size": 8}},
    "model": {"name": "simple_cnn"},
    "data": {"name": "synthetic", "samples": 120, "classes": 4, "shape": [3, 32, 32]},
    "local": {"epochs": 2, "batch_size": 16, "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9}},
    "sampling": {"fraction": 0.4},
}
NOTHING_TAUGHT = ("method.lambda_kd=0", "method.lambda_gen=0")


def run(*overrides):
    return run_in_process(SMALL, *overrides)


def simulation(*overrides):
    return simulation_of(SMALL, *overrides)


@pytest.mark.parametrize(
    "mean", ["geometric", "arithmetic", "harmonic", "interval", "participation", "samples"]
)
def test_teacher_is_the_direct_sum_over_all_clients(mean, monkeypatch):
    """Every round: sum_k F_k theta_k over all six, theta^0 = 100 where a client has not been seen."""
    method = KDIA(Options(mean=mean))
    monkeypatch.setattr(KDIA, "_trained_generator", lambda self, server, replies, ctx: server.generator)
    sizes, stream = [10, 20, 30, 40, 50, 60], np.random.default_rng(2)
    ctx = SimpleNamespace(
        round=0,
        sizes=sizes,
        num_clients=6,
        log=lambda **values: None,
        initial_vector=lambda architecture="model": torch.tensor([100.0]),
    )
    server, latest = method.init_server(ctx), [100.0] * 6
    for cohort in ([0, 1], [1, 2], [4], [0, 4], [2, 5], [1], [3, 0]):
        ctx.round += 1
        for client in cohort:
            latest[client] = float(np.float32(stream.normal()))
        replies = Replies([reply_of(k, sizes[k], student=[latest[k]]) for k in cohort])
        server = method.absorb(server, replies, ctx)
        weights = combined(known_frequencies(server, ctx), mean)
        assert server.teacher.item() == pytest.approx(float(np.dot(weights, latest)), rel=1e-6)
        mine = sum(sizes[k] * latest[k] for k in cohort) / sum(sizes[k] for k in cohort)
        assert server.student.item() == pytest.approx(mine, rel=1e-6)


def test_rounds_of_the_teacher_count_from_0_by_hand(monkeypatch):
    """F^intv alone, three clients, theta^0 = 10, and client 2 is never seen: t_2 = -1.

    t = 0: client 0 sends 2. F is as 1, 1/e, 1/e: (2 + 20 / e) / (1 + 2 / e) = 5.391065.
    t = 1: client 1 sends 4. F is as 1/e, 1, 1/e^2: (2 / e + 4 + 10 / e^2) / (1 / e + 1 + 1 / e^2) = 4.050726.
    """
    method = KDIA(Options(mean="interval"))
    monkeypatch.setattr(KDIA, "_trained_generator", lambda self, server, replies, ctx: server.generator)
    ctx = SimpleNamespace(
        sizes=[10, 20, 30],
        num_clients=3,
        log=lambda **values: None,
        initial_vector=lambda architecture="model": torch.tensor([10.0]),
    )
    server = method.init_server(ctx)
    for ctx.round, client, sent, teacher in ((1, 0, 2.0, 5.391065), (2, 1, 4.0, 4.050726)):
        server = method.absorb(server, Replies([reply_of(client, ctx.sizes[client], student=[sent])]), ctx)
        assert server.teacher.item() == pytest.approx(teacher, abs=1e-5)
        assert server.last[client] == ctx.round - 1


def test_without_its_two_terms_the_student_is_fedavg_bit_for_bit():
    plain = run("method={name: fedavg}")
    student = run(*NOTHING_TAUGHT)
    assert np.array_equal(student.models["student"], plain.models["global"])


@pytest.mark.parametrize("term", NOTHING_TAUGHT)
def test_each_term_alone_changes_the_student(term):
    neither, one = run(*NOTHING_TAUGHT), run(term)
    assert not np.array_equal(neither.models["student"], one.models["student"])


def test_full_participation_and_equal_sizes_make_the_teacher_the_student():
    result = run("sampling.fraction=1.0", "partition={name: iid, clients: 5}")
    partition = prepare(SMALL, ["partition={name: iid, clients: 5}"]).setting.partition
    assert len(set(partition.sizes.tolist())) == 1
    np.testing.assert_allclose(result.models["teacher"], result.models["student"], atol=1e-6)


def test_every_batch_is_trained_on_and_drop_last_leaves_short_ones_out():
    """Steps of a round: E sum ceil(N_k / B), or E sum max(floor(N_k / B), 1)."""
    for overrides, batches in (
        ((), lambda n: -(-n // 16)),
        (("method.drop_last=true",), lambda n: max(n // 16, 1)),
    ):
        sim = simulation("rounds=1", "sampling.fraction=1.0", *overrides)
        counted = batches_counted(sim)
        sim.run()
        sizes = sim.setting.partition.sizes.tolist()
        assert sum(counted) == 2 * sum(batches(n) for n in sizes)


def test_server_training_makes_what_the_ensemble_takes_for_the_class_asked_for():
    """Against a fixed linear ensemble the loss falls below half of log C, where it starts."""
    generator = "{width: 64, epochs: 2, batches: 40, batch_size: 64, lr: 0.01, diversity: 0.0}"
    sim = simulation(f"method.generator={generator}")
    ctx, options = sim.setting.server_context(1), sim.setting.method.options
    torch.manual_seed(1)
    ensemble = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(400, 4)).requires_grad_(False)
    fits = []
    ctx.log = lambda **values: fits.append(values["generator_ce"].item())
    generator = ctx.model(ctx.initial_vector("generator"), "generator")
    train_generator_on_labels(generator, ensemble, options.generator, ctx)
    assert len(fits) == 80
    assert fits[0] == pytest.approx(np.log(4), abs=0.3)
    assert np.mean(fits[-10:]) < 0.5 * np.log(4)


def test_eq_3s_extra_factor_is_a_temperature_of_k():
    """The generator's loss falls differently: sum p_k l_k / K against sum p_k l_k."""
    one, k = (run("rounds=1", f"method.ensemble_scale={s}") for s in ("one", "k"))
    losses = [dict(r.tables["rounds"].to_pylist()[0]["logged"]) for r in (one, k)]
    assert losses[0]["ce"] == losses[1]["ce"]
    assert losses[0]["generator_ce"] != losses[1]["generator_ce"]


def test_generator_is_used_from_the_round_that_says_so():
    early, late = run(), run("method.generator_from_round=3")
    logged = [[dict(r["logged"]) for r in result.tables["rounds"].to_pylist()] for result in (early, late)]
    assert ["gen" in losses for losses in logged[0]] == [True, True, True]
    assert ["gen" in losses for losses in logged[1]] == [False, False, True]


@pytest.mark.pictures
def test_pictures_of_weights_and_of_feature_similarity_and_their_data(tmp_path):
    import pyarrow.parquet as pq

    rayfed_kd.run(SMALL, [f"results.folder={tmp_path / 'a'}", "evaluation.samples=true"], local=True)
    folder = tmp_path / "a" / "figures"
    assert (folder / "teacher_weights-000003.png").stat().st_size > 5000
    weights = pq.read_table(folder / "teacher_weights-000003.parquet").to_pylist()
    assert {row["series"] for row in weights} == {"single (samples)", "triple"}
    for series in ("single (samples)", "triple"):
        assert sum(r["value"] for r in weights if r["series"] == series) == pytest.approx(1.0)
    similar = pq.read_table(folder / "feature_similarity-000003.parquet").to_pylist()
    assert len(similar) == 4
    assert all(np.isnan(row["value"]) or -1 <= row["value"] <= 1 for row in similar)


@pytest.mark.parametrize(("change", "message"), refused("kdia"))
def test_bad_input_is_refused_before_the_first_round(change, message):
    with pytest.raises(RecipeError) as caught:
        prepare({**SMALL, "method": {"name": "kdia"}}, change.splitlines())
    assert message in str(caught.value)


def test_reference_of_another_model_is_refused_with_both_shapes(tmp_path):
    np.save(tmp_path / "r.npy", np.zeros(5, dtype=np.float32))
    with pytest.raises(RecipeError, match=r"holds float32 \[5\], expected float32 \[91,084\]|\[91084\]"):
        prepare(SMALL, [f"method.reference={tmp_path / 'r.npy'}"])


def test_generator_of_images_is_refused_where_the_data_is_grey(own_module):
    own_module(
        "coloured",
        "import rayfed_kd\nfrom torch import nn\nfrom rayfed_kd.models.base import Generator\n\n\n"
        "@rayfed_kd.model_builder\ndef coloured(shape, classes):\n"
        "    return Generator(nn.Sequential(nn.Linear(3, 192), nn.Unflatten(1, (3, 8, 8))), 3)\n",
    )
    recipe = {**SMALL, "method": {"name": "fedkf", "generator": {"name": "coloured:coloured"}}}
    with pytest.raises(RecipeError, match=r"makes 3x8x8, the data's images are 1x8x8"):
        prepare(recipe, ["data={name: digits}", "model.name=lenet5"])


def test_ten_thousand_registered_clients_cost_what_those_seen_cost():
    """20 a round: what is kept grows with the clients seen, not with the clients there are."""
    changes = (
        "data={name: synthetic, samples: 20000, classes: 4, shape: [1, 32, 32]}",
        "partition={name: iid, clients: 10000, test_fraction: 0.5}",
        "sampling={count: 20}",
        "local.epochs=1",
        "evaluation.every=100",
        "rounds=4",
    )
    sim = simulation(*changes)
    before = psutil.Process().memory_info().rss
    sim.run()
    grown = psutil.Process().memory_info().rss - before
    seen = len(sim.servers[-1].last)
    assert isinstance(sim.servers[-1].slots, Slots)
    assert len(sim.servers[-1].slots.entries) == seen == len(sim.servers[-1].counts) <= 80
    slot_bytes = seen * 4 * sim.servers[-1].student.numel()
    assert grown < 20 * slot_bytes + 300 * 2**20  # modules and workspaces; 10,000 slots would be 3.6 GB
    assert 10_000 * 4 * sim.servers[-1].student.numel() > 3 * 2**30
