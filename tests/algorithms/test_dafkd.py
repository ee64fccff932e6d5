"""DaFKD: means, importance, its checks against FedAvg and FedDF, Appendix A and B."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from contexts import running_statistics
from runs import run_in_process, simulation_of
from small_recipes import FIVE_CLIENTS, refused

import rayfed_kd
from rayfed_kd.algorithms.dafkd.adversarial import slope_penalty
from rayfed_kd.cluster.server.cohort import EngineCohort
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.models.vectors import weighted_mean
from rayfed_kd.protocol import Replies, Reply
from rayfed_kd.toolbox import optimizers
from rayfed_kd.toolbox.losses import adversarial_loss, target_divergence

SMALL = {
    **FIVE_CLIENTS,
    "method": {"name": "dafkd", "generator": {"width": 4, "latent": 6}, "distill_batches": 3},
    "model": {"name": "bottleneck_resnet", "width": 2},
    "local": {
        "epochs": 1,
        "batch_size": 16,
        "optimizer": {"name": "adam", "lr": 0.002, "weight_decay": 0.001},
    },
    "rounds": 2,
    "evaluation": {"samples": False, "every": 2},
}


def run(*overrides):
    return run_in_process(SMALL, *overrides)


def simulation(*overrides):
    return simulation_of(SMALL, *overrides)


def trained_cohort(*overrides):
    """A simulation, its first context, state, and the first cohort's replies."""
    sim = simulation(*overrides)
    ctx, method = sim.setting.server_context(1), sim.setting.method
    server = sim.begin().server
    replies = EngineCohort(1, sim.run_state).broadcast(method.client_update, method.dispatch(server, ctx))
    return sim, ctx, server, replies


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_weighting_of_both_means(weighting):
    sim, ctx, server, replies = trained_cohort(f"method.weighting={weighting}", "method.distill_epochs=0")
    after = sim.setting.method.absorb(server, replies, ctx)
    counts = replies.numbers("samples") if weighting == "samples" else [1.0] * len(replies)
    assert len(set(replies.numbers("samples"))) > 1
    for found, name in ((after.weights, "student"), (after.generator, "generator")):
        assert torch.equal(found, weighted_mean(replies.vectors(name), counts))


def test_nothing_distilled_and_no_adversary_is_uniform_fedavg_bit_for_bit():
    changes = ("method.adversarial=false", "method.correlation=false", "method.distill_epochs=0")
    ours = run(*changes)
    plain = run("method={name: fedavg, weighting: uniform}")
    assert np.array_equal(ours.models["global"], plain.models["global"])


def constant(replies, logit=0.3):
    """The same replies with discriminators that say the same of everything."""
    made = []
    for reply in replies:
        head = torch.zeros_like(reply["discriminator"])
        head[-1] = logit
        parts = {name: reply[name] for name in ("student", "generator")}
        other = Reply(**parts, discriminator=head, **reply.metadata)
        other.client, other.handle = reply.client, reply.handle
        made.append(other)
    return Replies(made)


def test_constant_discriminators_weigh_uniformly_and_mix_plain_averages():
    """Then DaFKD is FedDF with averaged probabilities on generated samples."""
    sim, ctx, server, replies = trained_cohort()
    method, same = sim.setting.method, constant(replies)
    theta = weighted_mean(replies.vectors("generator"), [1.0] * len(replies))
    samples = method.options.samples(ctx.frozen_model(theta, "generator"), 5, ctx)
    predicted, log_f = method.ensemble(same, server.weights, samples, ctx)
    alpha = log_f.softmax(0)
    torch.testing.assert_close(alpha, torch.full_like(alpha, 1 / len(replies)))
    plain = []
    for vector in replies.vectors("student"):
        with torch.no_grad():
            plain.append(ctx.frozen_model(vector)(samples).softmax(1))
    mixed = torch.einsum("kn,knc->nc", alpha, predicted)
    torch.testing.assert_close(mixed, torch.stack(plain).mean(0), rtol=1e-4, atol=1e-5)


def test_constant_discriminators_and_no_correlation_give_the_same_model():
    sim, ctx, server, replies = trained_cohort()
    first = sim.setting.method.absorb(server, constant(replies), ctx)
    other = simulation("method.correlation=false")
    second = other.setting.method.absorb(server, replies, other.setting.server_context(1))
    torch.testing.assert_close(first.weights, second.weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changes", [(), ("method.target=logits", "method.temperature=2.0"), ("method.sharing=false",)]
)
def test_local_protocol_gives_the_defaults_result(changes):
    """Appendix B, within float tolerance: the clients do what the server did, on the same samples."""
    changes = ("rounds=1", "evaluation.every=1", *changes)
    upload, local = (run(f"method.protocol={p}", *changes) for p in ("upload", "local"))
    np.testing.assert_allclose(upload.models["global"], local.models["global"], rtol=2e-3, atol=2e-4)
    messages = [result.tables["messages"].to_pylist() for result in (upload, local)]
    kinds = [{row["kind"] for row in rows if row["direction"] == "up"} for rows in messages]
    assert kinds[0] == {"weights", "generator", "discriminator", "metadata"}
    assert kinds[1] == {"weights", "generator", "scalars", "logits", "metadata"}


def test_importance_is_normalised_alike_in_both_protocols():
    """Eq. 7: over the clients of the cohort the shares of each sample add up to one."""
    alphas = []
    for protocol in ("upload", "local"):
        sim = simulation(f"method.protocol={protocol}")
        server, ctx = sim.begin().server, sim.setting.server_context(1)
        cohort = EngineCohort(1, sim.run_state)
        alphas.append(sim.setting.method.run_round(server, cohort, ctx).alpha)
    torch.testing.assert_close(alphas[0].sum(1), torch.ones(len(alphas[0])))
    torch.testing.assert_close(alphas[0], alphas[1], rtol=1e-3, atol=1e-5)


def test_local_protocol_goes_on_over_rounds():
    """The model kept for the second exchange does not leak into the next round's state."""
    result = run("method.protocol=local", "rounds=3")
    assert result.summary["status"] == "finished"


def test_feature_generator_distils_into_the_class_head_alone():
    """Appendix A: the trunk of w is that of the mean; only the last layer learns."""
    sim, ctx, server, replies = trained_cohort("method.generated=features", "method.generator={hidden: 8}")
    after = sim.setting.method.absorb(server, replies, ctx)
    mean = weighted_mean(replies.vectors("student"), [1.0] * len(replies))
    flat = ctx.frozen_model(mean)
    head = sum(p.numel() for p in flat.module.head.parameters())
    end = flat.num_parameters
    assert torch.equal(after.weights[: end - head], mean[: end - head])
    assert not torch.equal(after.weights[end - head : end], mean[end - head : end])


def test_sharing_saves_the_discriminators_trunk():
    """Up, per client: a head of 4 x 4 x width + 1 = 33 numbers, or a network of its own with BatchNorm."""
    once = ("rounds=1", "evaluation.every=1")
    shared, whole = (run(f"method.sharing={s}", *once) for s in ("true", "false"))
    sent = []
    for result in (shared, whole):
        rows = [r for r in result.tables["messages"].to_pylist() if r["kind"] == "discriminator"]
        sent.append(rows[0]["bytes"] // 4)
    flat = prepare(SMALL, ["method.sharing=false"]).setting.module_pool().initial_vector("discriminator")
    assert sent == [33, flat.numel()]


@pytest.mark.parametrize(("mode", "moved"), [("keep", False), ("eval", False), ("update", True)])
def test_distillation_moves_running_statistics_only_if_it_is_asked_to(mode, moved):
    sim, ctx, server, replies = trained_cohort(f"method.batchnorm={mode}")
    after = sim.setting.method.absorb(server, replies, ctx)
    mean = weighted_mean(replies.vectors("student"), [1.0] * len(replies))
    flat = ctx.frozen_model(mean)
    assert (not torch.equal(running_statistics(flat, after.weights), running_statistics(flat, mean))) == moved
    assert not torch.equal(after.weights[: flat.num_parameters], mean[: flat.num_parameters])


def test_averaged_generator_draws_with_the_statistics_of_the_batch():
    """Its last BatchNorm has no parameters, so every batch of 16 images has mean 0 and deviation 1."""
    sim, ctx, _, replies = trained_cohort()
    theta = weighted_mean(replies.vectors("generator"), [1.0] * len(replies))
    generator, options = ctx.frozen_model(theta, "generator"), sim.setting.method.options
    drawn = options.samples(generator, 5, ctx).view(3, 16, -1)
    torch.testing.assert_close(drawn.mean(dim=(1, 2)), torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(drawn.std(dim=(1, 2)), torch.ones(3), rtol=0, atol=2e-3)
    assert torch.equal(
        running_statistics(generator, generator.vector()), running_statistics(generator, theta)
    )
    by_the_past = options.model_copy(update={"generator_statistics": "running"}).samples(generator, 5, ctx)
    assert by_the_past.std() < 0.9


def test_slope_penalty_by_hand():
    """f = sigmoid(w x), so |df / dx| = f (1 - f) |w|; between real (2, 0) and made (0, 4), a quarter real."""
    weight = torch.tensor([0.5, -0.25], requires_grad=True)
    judge = SimpleNamespace(generated=lambda samples: samples @ weight)
    penalty = slope_penalty(
        judge, torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 4.0]]), torch.tensor([0.25])
    )
    f = 1 / (1 + np.exp(0.5))  # at (0.5, 3): 0.25 - 0.75
    assert penalty.item() == pytest.approx((f * (1 - f) * np.hypot(0.5, 0.25) - 1) ** 2, rel=1e-5)
    penalty.backward()
    assert weight.grad.abs().min() > 0


@pytest.mark.parametrize(
    ("option", "stays"),
    [
        ("discriminator_rounds", {"discriminator"}),
        ("generator_rounds", {"generator"}),
        ("adversarial_epochs", {"discriminator", "generator"}),
    ],
)
def test_what_the_schedule_leaves_out_stays_as_it_was(option, stays):
    _, ctx, server, replies = trained_cohort(f"method.{option}=0")
    start = {"discriminator": ctx.initial_vector("discriminator"), "generator": server.generator}
    unchanged = set()
    for name, vector in start.items():
        end = ctx.frozen_model(vector, name).num_parameters  # a generator's statistics follow what it draws
        if all(torch.equal(trained[:end], vector[:end]) for trained in replies.vectors(name)):
            unchanged.add(name)
    assert unchanged == stays


@pytest.mark.parametrize("left_out", ["adversarial_epochs", "adversarial_weight"])
def test_without_the_adversary_the_classifier_trains_as_in_fedavg(left_out):
    _, _, _, with_adversary = trained_cohort(f"method.{left_out}=0")
    _, _, _, without = trained_cohort("method.adversarial=false")
    for first, second in zip(with_adversary, without, strict=True):
        assert torch.equal(first["student"], second["student"])


def test_released_schedule_trains_the_adversary_in_its_first_rounds_and_epochs(monkeypatch):
    """Two rounds, the discriminators learn in one, with the penalty; batched over clients the same.

    Adam with a large epsilon: else its first steps are signs of gradients, also of those that are rounding.
    """
    monkeypatch.setattr(optimizers, "ADAM_EPS", 0.01)
    released = [
        "method.discriminator_rounds=1",
        "method.adversarial_epochs=1",
        "method.gradient_penalty=0.3",
        "method.temperature=20",
        "method.distill_epochs=2",
        "method.distill_from_round=2",
        "method.distill_decay=0.2",
        "local.epochs=2",
    ]
    logged = []
    for vectorise in ("off", 3):
        result = run(*released, f"local.vectorise={vectorise}")
        rounds = [dict(row["logged"]) for row in result.tables["rounds"].to_pylist()]
        told = [[name in row for row in rounds] for name in ("penalty", "adversarial", "distillation")]
        assert told == [[True, False], [True, False], [False, True]]
        assert all("deceit" in row for row in rounds)
        logged.append([row[name] for row in rounds for name in sorted(row)])
    np.testing.assert_allclose(*logged, rtol=2e-3, atol=2e-3)


def test_adversarial_loss_is_eq_2():
    """Logits 0 and log 3: f = 1/2, 3/4. Real: log 2, log 4/3. Fake, 1 - f = 1/2, 1/4: log 2, log 4.

    Their mean is log(2 x 4/3 x 2 x 4) / 4.
    """
    logits = torch.tensor([0.0, float(np.log(3))])
    assert adversarial_loss(logits, logits).item() == pytest.approx(np.log(64 / 3) / 4, rel=1e-6)
    assert adversarial_loss(logits[1:], logits[:1]).item() == pytest.approx(np.log(8 / 3) / 2, rel=1e-6)


def test_distillation_from_a_mixed_target_by_hand():
    """Target (1, 0), student (0, 0): log 2, gradient (-1/2, 1/2); T 2 gives 4 / 2 times that: (-1, 1)."""
    logits = torch.zeros(1, 2, requires_grad=True)
    loss = target_divergence(torch.tensor([[1.0, 0.0]]), logits)
    loss.backward()
    assert loss.item() == pytest.approx(np.log(2), rel=1e-6)
    torch.testing.assert_close(logits.grad, torch.tensor([[-0.5, 0.5]]))
    logits.grad = None
    target_divergence(torch.tensor([[1.0, 0.0]]), logits, 2.0).backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[-1.0, 1.0]]))


def test_minmax_and_non_saturating_move_the_generator_differently():
    first, second = (
        run(f"method.generator_loss={g}", "rounds=1", "evaluation.every=1")
        for g in ("non_saturating", "minmax")
    )
    deceit = [dict(r.tables["rounds"].to_pylist()[0]["logged"])["deceit"] for r in (first, second)]
    assert deceit[0] > 0 > deceit[1]


def test_logged_and_drawn(tmp_path):
    changes = [f"results.folder={tmp_path / 'a'}", "evaluation.samples=true"]
    result = rayfed_kd.run(SMALL, changes, local=True)
    losses = dict(result.tables["rounds"].to_pylist()[-1]["logged"])
    assert {"adversarial", "deceit", "real_right", "fake_right", "distillation", "ce"} <= set(losses)
    assert 0 <= losses["real_right"] <= 1
    drawn = {path.name for path in (tmp_path / "a" / "figures").iterdir()}
    assert {"samples-000002.png", "importance-000002.png", "importance-000002.parquet"} <= drawn


@pytest.mark.parametrize(("change", "message"), refused("dafkd"))
def test_bad_input_is_refused_before_the_first_round(change, message):
    with pytest.raises(RecipeError) as caught:
        prepare({**SMALL, "method": {"name": "dafkd"}}, change.splitlines())
    assert message in str(caught.value)
