"""FedGen: worked losses, the identity with FedAvg, who gets gradient, what the server keeps."""

import numpy as np
import pytest
import torch

from rayfed_kd.algorithms.fedgen import FedGen, Options
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.models.vectors import weighted_mean

GENERATOR = {"hidden": 16, "latent": 4, "steps": 3, "batch_size": 8}
METHOD = {"name": "fedgen", "generator": GENERATOR}
LENET5 = 21_386  # parameters for 8x8 digits


def test_fit_of_the_paper_is_the_cross_entropy_of_the_mean_logits():
    """Logits (1, 0) and (0, 2), label 0: mean (.5, 1), so log(1 + e^.5) = 0.9740769842."""
    logits = torch.tensor([[[1.0, 0.0]], [[0.0, 2.0]]], dtype=torch.float64)
    method = FedGen(Options(teacher="paper"))
    fit = method._fit(logits, torch.tensor([0]), torch.full((2, 2), 0.5))
    assert fit.item() == pytest.approx(0.9740769842, abs=1e-9)


@pytest.mark.parametrize(("form", "expected"), [("per_sample", 1.0875), ("cancelled", 0.97375)])
def test_fit_of_weighted_cross_entropies_by_hand(form, expected):
    """CE (.2, 1) and (.5, 2), a (.75, .1) and (.25, .9): a logit of -log(e^CE - 1) against 0 has that CE."""
    wanted = torch.tensor([[0.2, 1.0], [0.5, 2.0]], dtype=torch.float64)
    logits = torch.stack([-torch.log(torch.exp(wanted) - 1), torch.zeros_like(wanted)], dim=2)
    logits[:, 1] = logits[:, 1].flip(1)  # the second sample is of class 1
    shares = torch.tensor([[0.75, 0.1], [0.25, 0.9]], dtype=torch.float64)
    method = FedGen(Options(class_weights=form))
    fit = method._fit(logits, torch.tensor([0, 1]), shares)
    assert fit.item() == pytest.approx(expected, abs=1e-9)


def test_without_its_two_terms_it_is_fedavg_bit_for_bit(train):
    ours = train({**METHOD, "alpha": 0.0, "beta": 0.0})["global"]
    assert torch.equal(ours, train({"name": "fedavg"})["global"])


@pytest.mark.parametrize("term", ["alpha", "beta"])
def test_each_term_alone_changes_the_model_from_the_second_round_on(term, train):
    neither = {**METHOD, "alpha": 0.0, "beta": 0.0}
    for rounds, same in ((1, True), (2, False)):
        one = train({**neither, term: 10.0}, f"rounds={rounds}")["global"]
        none = train(neither, f"rounds={rounds}")["global"]
        assert torch.equal(one, none) == same


def test_weights_fade_by_the_number_of_updates(bench):
    """10 x .98^10 = 8.1707280689 after ten updates, whatever the round."""
    trained = []
    for alpha, decay in ((10.0, 0.98), (8.1707280689, 1.0), (10.0, 1.0)):
        table = bench({**METHOD, "alpha": alpha, "beta": alpha, "decay": decay}, "local.epochs=1")
        server = table.method.init_server(table.server())
        replies = table.exchange(type(server)(server.weights, server.generator, {}, 10), [2])
        trained.append(replies[0]["student"])
    torch.testing.assert_close(trained[0], trained[1], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(trained[0], trained[2], rtol=1e-4, atol=1e-6)


def test_generated_share_is_the_ratio_of_the_batches(bench):
    """One step of plain SGD on a batch of 500: the generated term's pull is r = 250 / 500 of its gradient."""
    moved = []
    for alpha, generated in ((0.0, 250), (10.0, 250), (5.0, None)):
        method = {**METHOD, "alpha": alpha, "beta": 0.0, "generated_batch": generated}
        table = bench(method, "local={epochs: 1, batch_size: 500, optimizer: {lr: 0.05}}")
        server = table.method.init_server(table.server())
        replies = table.exchange(type(server)(server.weights, server.generator, {}, 1), [2])
        moved.append(replies[0]["student"].double())
    pulls = [(vector - moved[0]).norm().item() for vector in moved[1:]]
    assert pulls[0] == pytest.approx(pulls[1], rel=0.3)  # other draws of the same distribution


def test_later_local_epochs_do_without_the_generator(bench):
    table = bench({**METHOD, "generated_epochs": 0})
    server = table.method.init_server(table.server())
    table.exchange(type(server)(server.weights, server.generator, {}, 3), [1])
    assert set(table.logs[1]) == {"ce"}


def test_generated_term_reaches_the_predictor_only_and_the_latent_term_the_whole_model(bench):
    ctx = bench(METHOD).client(0)
    student = ctx.model(ctx.initial_vector())
    generator = ctx.frozen_model(ctx.initial_vector("generator"), "generator")
    images, labels = next(ctx.epoch(0))
    head = 84 * 10 + 10
    method, models = FedGen(Options()), {"student": student, "generator": generator}
    batch = {"images": images, "labels": labels, **method._drawn(len(labels), generator, ctx)}
    given = ctx.scale._asdict()
    method.latent_term(student(images), models, batch, given).backward()
    assert student.gradients[:-head].abs().max() > 0
    student.zero_gradients()
    method.generated_term(models, batch, given).backward()
    assert student.gradients[:-head].abs().max() == 0
    assert student.gradients[-head:].abs().max() > 0
    assert generator.gradients.abs().max() == 0


def test_latent_terms_target_gets_no_gradient(bench):
    """KL(h(G), f(x)) through f(x) only: the model gets none where the logits are someone else's."""
    ctx = bench(METHOD).client(0)
    student = ctx.model(ctx.initial_vector())
    generator = ctx.frozen_model(ctx.initial_vector("generator"), "generator")
    logits = torch.randn(6, 10, requires_grad=True)
    labels = torch.arange(6)
    method, models = FedGen(Options(beta=1.0)), {"student": student, "generator": generator}
    batch = {"labels": labels, **method._drawn(6, generator, ctx)}
    method.latent_term(logits, models, batch, ctx.scale._asdict()).backward()
    assert student.gradients.abs().max() == 0
    assert logits.grad.sum(1).abs().max() < 1e-6


def test_server_updates_the_generator_against_the_clients_own_models(bench):
    """It changes, the average is FedAvg's, and Adam's moments and step count go on over updates."""
    table = bench(METHOD)
    server, replies = table.first_exchange(0, 1, 2)
    first = table.method.absorb(server, replies, table.server())
    expected = weighted_mean(replies.vectors("student"), replies.numbers("samples"))
    assert torch.equal(first.weights, expected)
    assert not torch.equal(first.generator, server.generator)
    assert first.moments["steps"].item() == 3
    second = table.method.absorb(first, replies, table.server(2))
    assert second.moments["steps"].item() == 6
    assert (first.version, second.version) == (1, 2)


def test_generator_learns_what_the_clients_take_for_the_label(bench):
    """Against trained clients its loss falls below half of where it starts, in both forms."""
    for teacher in ("weighted_ce", "paper"):
        generator = {**GENERATOR, "hidden": 64, "steps": 150, "batch_size": 32, "lr": 0.01}
        method = {**METHOD, "generator": generator, "eta": 0.0, "teacher": teacher}
        table = bench(method, "local.epochs=10")
        server, replies = table.first_exchange(0, 1, 2, 3, 4)
        ctx, fits = table.server(), []
        ctx.log = lambda fits=fits, **values: fits.append(values["generator_ce"].item())
        table.method.absorb(server, replies, ctx)
        assert len(fits) == 150
        assert np.mean(fits[-10:]) < 0.5 * fits[0]


def test_rate_of_the_generator_shrinks_by_its_factor_an_update(bench):
    """Adam's first step moves every weight by its rate, whatever the gradient's size."""
    table = bench({**METHOD, "generator": {**GENERATOR, "steps": 1, "weight_decay": 0.0}})
    server, replies = table.first_exchange(0, 1)
    moved = []
    for version in (0, 20):
        start = type(server)(server.weights, server.generator, {}, version)
        after = table.method.absorb(start, replies, table.server())
        moved.append((after.generator - server.generator).abs().max().item())
    assert moved[0] == pytest.approx(3e-4, rel=1e-2)
    assert moved[1] == pytest.approx(3e-4 * 0.98**20, rel=1e-2)


def test_clients_leave_the_generator_as_it_is_also_with_batch_norm(bench, lent):
    """At a client it is frozen and in eval mode: a batch's statistics would move its buffers."""
    table = bench({**METHOD, "generator": {**GENERATOR, "norm": "batch"}}, "local.epochs=1")
    server = table.method.init_server(table.server())
    table.exchange(type(server)(server.weights, server.generator, {}, 1), [0])
    assert len(lent) == 1
    assert lent[0].num_buffers > 0
    assert torch.equal(lent[0].vector(), server.generator)


def test_down_go_model_and_generator_up_go_model_and_label_counts(run_small):
    """Generator 84 features, hidden 16, noise 4, 10 classes: (14 + 1) 16 + 2 x 16 + (16 + 1) 84 = 1,700."""
    row = run_small(METHOD, "rounds=1").tables["rounds"].to_pylist()[0]
    assert row["bytes_down"] == 3 * 4 * (LENET5 + 1_700)
    assert row["bytes_up"] == 3 * 4 * (LENET5 + 10)


@pytest.mark.parametrize(
    ("method", "generator", "message"),
    [
        ("fedgen", "dafl_image", "dafl_image"),
        ("fedgen", "conditional_image", "conditional_image takes images"),
        ("fedftg", "dafl_image", "dafl_image takes noise alone"),
        ("fedftg", "dense_feature", "dense_feature"),
    ],
)
def test_wrong_generators_are_answered(method, generator, message, small):
    with pytest.raises(RecipeError) as caught:
        prepare({**small, "method": {"name": method}}, [f"method.generator={{name: {generator}}}"])
    assert message in str(caught.value)
