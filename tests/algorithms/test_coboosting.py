"""Co-Boosting: its losses and the step of the weights by hand, moved images, DENSE without its additions."""

import pytest
import torch
from runs import run_in_process
from small_recipes import ONE_SHOT as FEW

from rayfed_kd.algorithms.coboosting import (
    boosted,
    hard_cross_entropy,
    mixed,
    student_divergence,
)
from rayfed_kd.toolbox.data_free.synthesis import Teachers
from rayfed_kd.toolbox.losses import cross_entropy

SAID = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
STUDENT = torch.tensor([[1.0, 0.5, 0.0]], dtype=torch.float64)
LABELS = torch.tensor([0])
CHANGES = ("model={name: mlp, hidden: 8}", "rounds=1", "local.epochs=1", "evaluation.every=1")


def test_hard_cross_entropy_by_hand():
    """(1 - 0.8437947345) x 0.1698460196; its gradient is the share times that of CE."""
    logits = SAID.clone().requires_grad_()
    loss = hard_cross_entropy(logits, LABELS, 1.0)
    assert loss.item() == pytest.approx(0.0265308426, abs=1e-9)
    loss.backward()
    expected = (1 - 0.8437947345) * (SAID.softmax(1) - torch.tensor([[1.0, 0, 0]]))
    torch.testing.assert_close(logits.grad, expected, atol=1e-9, rtol=0)
    assert hard_cross_entropy(SAID, LABELS, 0.0).item() == cross_entropy(SAID, LABELS).item()


def test_adversarial_term_by_hand():
    """T 3, without a mask: also where both take the same class."""
    assert -student_divergence(SAID, STUDENT, 3.0).item() == pytest.approx(-0.3816498482, abs=1e-9)


def test_step_of_the_weights_by_hand():
    """Models (2, 0), (0, 1), w (.5, .5), y 0: gradient (-.566, .566), new w (.51, .49), CE .4741 to .4629."""
    logits = torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]]], dtype=torch.float64)
    w = torch.tensor([0.5, 0.5], dtype=torch.float64)
    leaf = w.clone().requires_grad_()
    loss = cross_entropy(mixed(leaf, logits), LABELS)
    assert loss.item() == pytest.approx(0.4740769842, abs=1e-9)
    loss.backward()
    assert leaf.grad.tolist() == pytest.approx([-0.5663110032, 0.5663110032], abs=1e-9)
    after = boosted(w, logits, LABELS, 0.01)
    assert after.tolist() == pytest.approx([0.51, 0.49])
    assert mixed(after, logits).tolist() == [pytest.approx([1.02, 0.49])]
    assert cross_entropy(mixed(after, logits), LABELS).item() == pytest.approx(0.4628562536, abs=1e-9)


def test_weights_stay_in_range():
    logits = torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]]])
    assert boosted(torch.tensor([0.995, 0.005]), logits, LABELS, 0.01).tolist() == [1.0, 0.0]


def test_slopes_of_the_weights_balance_so_that_not_all_fall():
    stream = torch.Generator().manual_seed(0)
    w = torch.rand(4, generator=stream, dtype=torch.float64).requires_grad_()
    logits = torch.randn(4, 32, 10, generator=stream, dtype=torch.float64)
    loss = cross_entropy(mixed(w, logits), torch.randint(10, (32,), generator=stream))
    (slope,) = torch.autograd.grad(loss, w)
    assert (w.detach() * slope).sum().item() == pytest.approx(0, abs=1e-12)
    assert slope.abs().min() > 1e-4


def test_mixed_divides_by_the_sum_of_the_weights():
    logits = torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]]])
    assert mixed(torch.tensor([0.2, 0.6]), logits).tolist() == [pytest.approx([0.5, 0.75])]


def test_images_move_by_the_radius_where_the_ensemble_has_a_slope(bench):
    table = bench({"name": "coboosting", **FEW, "radius": 0.1}, *CHANGES)
    ctx = table.server()
    model = ctx.frozen_model(ctx.initial_vector())
    images = torch.randn(3, *ctx.shape, generator=torch.Generator().manual_seed(2))
    weights = torch.ones(1)
    moved = table.method.moved(images, Teachers([model]), weights, ctx)
    r = torch.rand(3, 10, generator=table.server().stream("directions")) * 2 - 1
    x = images.clone().requires_grad_()
    (slope,) = torch.autograd.grad((r * (model(x) / 4).softmax(1)).sum(), x)
    torch.testing.assert_close(moved, images + 0.1 * slope.sign())
    assert float((moved - images).abs().max()) == pytest.approx(0.1, abs=1e-6)


def test_without_its_additions_it_is_dense_without_a_mask(small):
    """Terms of the generator's loss that differ are off; the rate that falls is a factor of one epoch: 1."""
    off = {"lambda_adv": 0.0, "lambda_bn": 0.0, "temperature": 4.0, "epochs": 1, "generator_steps": 3}
    plain = {"optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}}
    models = []
    for method in (
        {"name": "coboosting", "mu": 0.0, "hardness": 0.0, "radius": 0.0},
        {"name": "dense", **plain},
    ):
        recipe = {**small, "method": {**FEW, **method, **off}}
        models.append(torch.as_tensor(run_in_process(recipe, *CHANGES).models["student"]))
    torch.testing.assert_close(*models)


def test_weights_learn_from_the_second_epoch_on(small):
    """The largest of three is a third at first."""
    for epochs, above in ((1, False), (3, True)):
        recipe = {**small, "method": {"name": "coboosting", **FEW, "epochs": epochs, "mu": 0.1}}
        (row,) = run_in_process(recipe, *CHANGES).rows["rounds"]
        assert (dict(row["logged"])["largest_weight"] > 1 / 3 + 1e-3) == above
