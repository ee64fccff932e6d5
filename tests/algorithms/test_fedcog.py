"""FedCOG: what a client lacks, the images' loss by hand, the identity with FedAvg, who gets gradient."""

from itertools import islice

import numpy as np
import pytest
import torch
from contexts import running_statistics
from partitions import partition_of

from rayfed_kd.algorithms.fedcog import FedCOG, Options, endless_batches, missing_labels
from rayfed_kd.toolbox.losses import cross_entropy, distillation

# Section 1 of the comparison methods' notes: t = (2, 0, -1), u = (1, 0.5, 0), label 0.
T = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
U = torch.tensor([[1.0, 0.5, 0.0]], dtype=torch.float64)
METHOD = {"name": "fedcog", "images": 30, "steps": 4}


def test_labels_complement_the_local_counts():
    """Counts (50, 10, 0, 40) lack 0, 40, 50, 10: shares 0, .4, .5, .1 of 256 round down to 102, 128, 25."""
    labels = missing_labels(torch.tensor([50.0, 10.0, 0.0, 40.0]), 256)
    assert torch.bincount(labels).tolist() == [0, 102, 128, 25]


@pytest.mark.parametrize("counts", [[7.0, 7.0, 7.0], [0.0, 0.0]])
def test_balanced_client_and_one_without_samples_lack_nothing(counts):
    assert len(missing_labels(torch.tensor(counts), 256)) == 0


def test_loss_of_the_images_by_hand():
    """Task 0.1698460196; less a tenth of KL(t, u) = 0.2551107197: 0.1443349476."""
    task = cross_entropy(T, torch.tensor([0]))
    assert task.item() == pytest.approx(0.1698460196, abs=1e-9)
    apart = FedCOG()._disagreement(T, U)
    assert (task - 0.1 * apart).item() == pytest.approx(0.1443349476, abs=1e-9)
    assert FedCOG(Options(disagreement="js"))._disagreement(T, U).item() == pytest.approx(
        0.0688689756, abs=1e-9
    )


def test_lambda_kd_zero_is_fedavg_bit_for_bit(train):
    ours = train({**METHOD, "lambda_kd": 0.0})["global"]
    assert torch.equal(ours, train({"name": "fedavg"})["global"])


def test_distillation_changes_the_model_from_the_round_that_says_so(train):
    for rounds, same in ((1, True), (2, False)):
        late = train({**METHOD, "generation_from_round": 2}, f"rounds={rounds}")["global"]
        plain = train({"name": "fedavg"}, f"rounds={rounds}")["global"]
        assert torch.equal(late, plain) == same


def test_balanced_client_trains_as_in_fedavg(bench, tmp_path):
    """Client 0 has six of each class, client 1 eight of one: only the second's training changes."""
    file, held = tmp_path / "p.parquet", (np.arange(40, 50), np.arange(50, 60))
    partition_of((np.arange(12), np.arange(12, 28, 2)), held).save(file)
    changes = (
        "data={name: synthetic, samples: 100, classes: 2, shape: [1, 8, 8]}",
        f"partition={{name: iid, clients: 2, file: {file}}}",
    )
    found = []
    for method in (METHOD, {"name": "fedavg"}):
        table = bench(method, *changes)
        counts = [table.client(client).label_counts().tolist() for client in (0, 1)]
        assert counts == [[6, 6], [8, 0]]
        found.append([reply["student"] for reply in table.first_exchange(0, 1)[1]])
    assert torch.equal(found[0][0], found[1][0])
    assert not torch.equal(found[0][1], found[1][1])


def test_client_without_a_past_disagrees_with_nobody_and_one_with_a_past_with_its_last_model(bench):
    table = bench(METHOD)
    server = table.method.init_server(table.server())
    sent = table.exchange(server, [1], 5)[0]["student"]
    assert "task" in table.logs[1]
    assert "disagreement" not in table.logs[1]
    assert torch.equal(table.states[1], sent)
    table.exchange(server, [1, 2], 6)
    assert table.logs[1]["disagreement"] > 0
    assert "disagreement" not in table.logs[2]


def test_images_come_to_be_what_the_consensus_model_takes_for_the_label(bench):
    """Its cross entropy falls from step to step; the models it passes get no gradient and stay."""
    table = bench({**METHOD, "steps": 40, "lr": 0.1})
    ctx = table.client(0)
    vector = 2 * ctx.initial_vector()  # an untrained model's logits are near 0
    consensus, own = ctx.frozen_model(vector), ctx.frozen_model(vector + 0.01)
    fits = []
    ctx.log = lambda **values: fits.extend(v.item() for name, v in values.items() if name == "task")
    images = table.method._images(torch.arange(10), consensus, own, ctx)
    assert images.shape == (10, 1, 8, 8)
    assert not images.requires_grad
    assert len(fits) == 40
    assert fits[-1] < 0.7 * fits[0]
    for model, before in ((consensus, vector), (own, vector + 0.01)):
        assert model.gradients.abs().max() == 0
        assert torch.equal(model.vector(), before)


def test_disagreement_drives_the_images_to_where_both_models_differ(bench):
    """The same images with and without the term: with it, consensus and own model are further apart."""
    apart = []
    for weight in (0.0, 5.0):
        table = bench({**METHOD, "steps": 40, "lr": 0.1, "lambda_dis": weight})
        ctx = table.client(0)
        vector = ctx.initial_vector()
        consensus, own = ctx.frozen_model(vector), ctx.frozen_model(1.5 * vector)
        images = table.method._images(torch.arange(10), consensus, own, ctx)
        apart.append(table.method._disagreement(consensus(images), own(images)).item())
    assert apart[1] > 2 * apart[0]


def test_frozen_models_are_in_eval_mode(bench, lent):
    """Batch statistics would make a prediction depend on the other images, and move the running ones."""
    table = bench(METHOD, "model={name: bottleneck_resnet, width: 2}", "local.epochs=1")
    server, _ = table.first_exchange(0)
    lent.clear()
    kept = table.states[0]
    table.exchange(server, [0], 2)
    assert len(lent) == 2
    assert not any(flat.module.training for flat in lent)
    assert torch.equal(lent[0].vector(), server.weights)
    assert torch.equal(lent[1].vector(), kept)


def test_generated_batches_go_round_all_images_in_new_orders(bench):
    """Seven in batches of three: 3, 3, 1, and again, each pass a permutation."""
    ctx = bench(METHOD, "local.batch_size=3").client(0)
    batches = list(islice(endless_batches(7, ctx), 6))
    assert [len(batch) for batch in batches] == [3, 3, 1] * 2
    passes = [torch.cat(batches[:3]), torch.cat(batches[3:])]
    assert all(sorted(chosen.tolist()) == list(range(7)) for chosen in passes)
    assert not torch.equal(*passes)


def test_generated_image_of_a_batch_of_its_own_is_normalised_by_the_running_statistics(bench):
    """BatchNorm cannot train on one: its logits are those of the model in eval mode."""
    table = bench(METHOD, "model={name: 'zoo_modules:BatchNorm1d'}")
    ctx = table.client(0)
    student = ctx.model(ctx.initial_vector())
    images, taught = torch.randn(5, 1, 8, 8), torch.randn(1, 10)
    batch = {"images": images[:4], "labels": torch.arange(4), "generated": images[4:], "taught": taught}
    loss = table.method.loss({"student": student}, batch, {})
    assert torch.equal(loss.logged["kd"], distillation(taught, student.predict(images[4:]), 1.0))


def test_bytes_are_fedavgs(run_small):
    ours, plain = (
        run_small(method, "rounds=1").tables["rounds"].to_pylist()[0]
        for method in (METHOD, {"name": "fedavg"})
    )
    assert (ours["bytes_up"], ours["bytes_down"]) == (plain["bytes_up"], plain["bytes_down"])


@pytest.mark.parametrize(("mode", "moved"), [("update", True), ("keep", False), ("eval", False)])
def test_running_statistics_are_of_real_images_unless_they_are_to_follow(mode, moved, bench):
    """Without weight on the distillation, generated images can reach the model by its statistics alone."""
    net = "model={name: bottleneck_resnet, width: 2}"
    method = {"name": "fedcog", "steps": 2, "images": 20, "lambda_kd": 1e-12, "batchnorm": mode}
    changes = (net, "local.epochs=1", "local.optimizer={name: sgd, lr: 0.01}")
    trained = []
    for one in (method, {"name": "fedavg"}):
        table = bench(one, *changes)
        vector = table.first_exchange(0)[1][0]["student"]
        trained.append(running_statistics(table.server().frozen_model(vector), vector))
    assert (not torch.allclose(*trained, rtol=1e-4, atol=1e-6)) == moved
