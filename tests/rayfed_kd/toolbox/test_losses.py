"""Losses against their definitions in float64 and against numbers worked by hand."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from rayfed_kd.toolbox.losses import (
    activation_loss,
    cross_entropy,
    directed_divergence,
    distillation,
    information_entropy_loss,
    jensen_shannon_divergence,
    kl_divergence,
    one_hot_loss,
    pairwise_diversity_loss,
    soft_cross_entropy,
)

# Section 1 of the comparison methods' notes: t = (2, 0, -1), u = (1, 0.5, 0), label 0.
T = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
U = torch.tensor([[1.0, 0.5, 0.0]], dtype=torch.float64)


def softmax(logits):
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def random_logits(seed=0, rows=7, classes=5):
    return np.random.default_rng(seed).normal(scale=3, size=(rows, classes))


@pytest.mark.parametrize(("temperature", "value"), [(1, 0.2551107197), (2, 0.3652279757), (3, 0.3816498482)])
def test_distillation_matches_worked_numbers(temperature, value):
    assert distillation(T, U, temperature).item() == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("temperature", [1, 2, 3])
def test_divergence_in_both_directions_has_both_logits_at_the_temperature(temperature):
    """Distillation is T^2 times the one direction; with teacher and student exchanged it is the other."""
    value = distillation(T, U, temperature).item() / temperature**2
    forward = directed_divergence(T, U, temperature, "teacher_student")
    backward = directed_divergence(U, T, temperature, "student_teacher")
    assert [forward.item(), backward.item()] == pytest.approx([value, value], abs=1e-12)


def test_distillation_tends_to_half_the_squared_centred_differences():
    """(1 / 2C) sum of squared centred differences = 0.3611111111; T = 1000 gives 0.3612744301."""
    assert distillation(T, U, 1000).item() == pytest.approx(0.3612744301, abs=1e-7)


def test_distillation_gradient_is_t_times_the_difference_and_the_students_alone():
    """T (s_T(u) - s_T(t)) at T = 2: (-0.4186055352, 0.1905438764, 0.2280616588)."""
    teacher, student = T.clone().requires_grad_(), U.clone().requires_grad_()
    distillation(teacher, student, 2).backward()
    assert teacher.grad is None
    expected = torch.tensor([[-0.4186055352, 0.1905438764, 0.2280616588]], dtype=torch.float64)
    assert torch.allclose(student.grad, expected, atol=1e-9)


def test_divergence_gives_both_a_gradient():
    teacher, student = T.clone().requires_grad_(), U.clone().requires_grad_()
    kl_divergence(teacher, student).backward()
    assert teacher.grad is not None
    assert student.grad is not None


def test_cross_entropy_matches_the_worked_number():
    assert cross_entropy(U, torch.tensor([0])).item() == pytest.approx(0.6802696706, abs=1e-9)


def test_divergence_is_not_symmetric():
    """T^2 KL(u, t) at T = 1, 2, 3: the other direction of the worked numbers."""
    for temperature, value in ((1, 0.3230176239), (2, 0.3767111566), (3, 0.3806019489)):
        assert distillation(U, T, temperature).item() == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: distillation(-x, x, 2),
        lambda x: cross_entropy(x, x.argmin(dim=1)),
        lambda x: soft_cross_entropy(x.softmax(1), -x),
        one_hot_loss,
        activation_loss,
    ],
)
def test_loss_of_a_batch_is_the_mean_of_its_samples(loss):
    logits = torch.tensor(random_logits(6))
    assert loss(logits).item() == pytest.approx(np.mean([loss(row[None]).item() for row in logits]))


def test_one_hot_loss_is_cross_entropy_with_the_largest():
    logits = random_logits(3)
    expected = -np.log(softmax(logits).max(axis=1)).mean()
    assert one_hot_loss(torch.tensor(logits)).item() == pytest.approx(expected)


def test_information_entropy_matches_definition_in_float64():
    logits = random_logits(4)
    mean = softmax(logits).mean(axis=0)
    entropy = -(mean * np.log(mean)).sum()
    assert information_entropy_loss(torch.tensor(logits)).item() == pytest.approx(-entropy)
    released = information_entropy_loss(torch.tensor(logits), normalised=True).item()
    assert released == pytest.approx(1 - entropy / math.log(5))


def test_information_entropy_is_least_where_classes_are_as_frequent():
    """Each class once: H = log 3. One class only: H = 0."""
    each = information_entropy_loss(100 * torch.eye(3))
    assert each.item() == pytest.approx(-math.log(3), abs=1e-6)
    assert information_entropy_loss(torch.tensor([[100.0, 0, 0]] * 3)).item() == pytest.approx(0, abs=1e-6)


def test_activation_loss_by_hand():
    """|1| + |-3| = 4, |2| + |0| = 2: sum form -(4 + 2) / 2 = -3, mean form half of it."""
    features = torch.tensor([[1.0, -3.0], [2.0, 0.0]])
    assert activation_loss(features, "sum").item() == -3.0
    assert activation_loss(features, "mean").item() == -1.5


@pytest.mark.parametrize("loss", [one_hot_loss, information_entropy_loss, lambda x: kl_divergence(x, -x)])
def test_large_logits_give_finite_values_and_gradients(loss):
    logits = torch.tensor([[1e4, -1e4, 0.0], [0.0, 1e4, 5.0]], requires_grad=True)
    value = loss(logits)
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(logits.grad).all()


def test_entropy_of_a_one_hot_mean_is_zero():
    """p = (1, 0, 0) to the last bit, where 0 log 0 counts as 0."""
    logits = torch.tensor([[1e4, 0.0, -1e4]] * 3, requires_grad=True)
    value = information_entropy_loss(logits)
    value.backward()
    assert value.item() == 0
    assert torch.isfinite(logits.grad).all()


ON_ROWS = {
    "cross_entropy": lambda rows: cross_entropy(rows, torch.zeros(len(rows), dtype=torch.int64)),
    "kl_divergence": lambda rows: kl_divergence(rows, rows),
    "distillation": lambda rows: distillation(rows, rows),
    "soft_cross_entropy": lambda rows: soft_cross_entropy(rows, rows),
    "one_hot_loss": one_hot_loss,
    "information_entropy_loss": information_entropy_loss,
    "activation_loss": activation_loss,
}


@pytest.mark.parametrize("name", ON_ROWS)
@pytest.mark.parametrize("shape", [(3,), (0, 3), (2, 3, 4)])
def test_other_than_rows_is_refused(name, shape):
    """A third dimension would be averaged in silence, an empty batch would give NaN.

    Of one row without a batch torch would take the classes for the batch.
    """
    with pytest.raises(ValueError, match=r"expected \[batch, "):
        ON_ROWS[name](torch.zeros(shape))


@pytest.mark.parametrize("labels", [torch.zeros(3, dtype=torch.int64), torch.zeros(2, 5)])
def test_labels_that_do_not_match_are_refused(labels):
    """[2, 5] floats are logits in the labels' place; torch would take them as probabilities."""
    with pytest.raises(ValueError, match=r"expected \[2\]"):
        cross_entropy(torch.zeros(2, 5), labels)


def test_normalised_entropy_of_one_class_is_refused():
    with pytest.raises(ValueError, match="expected 2 or more"):
        information_entropy_loss(torch.zeros(4, 1), normalised=True)


def test_shapes_that_differ_are_refused():
    with pytest.raises(ValueError, match=r"teacher \[1, 3\] and student \[1, 2\] differ"):
        distillation(T, U[:, :2])


def test_soft_cross_entropy_is_the_divergence_and_the_labels_entropy():
    """Of DS-FL's worked labels: 0.8935234455 and 0.0603900843, the entropy between them."""
    labels = torch.tensor([[0.6723188492, 0.2288547520, 0.0988263989]], dtype=torch.float64)
    found = soft_cross_entropy(labels, U).item()
    assert found == pytest.approx(0.8935234455, abs=1e-9)
    entropy = -(labels * labels.log()).sum().item()
    assert found - entropy == pytest.approx(0.0603900843, abs=1e-9)


def test_soft_cross_entropy_gives_its_labels_no_gradient_and_takes_rows_off_the_simplex():
    """Gradient of -sum_c y_c log s_c is (sum y) s - y: with y = (3, -1, 0.5) a sum of 2.5."""
    labels = torch.tensor([[3.0, -1.0, 0.5]], dtype=torch.float64, requires_grad=True)
    student = U.clone().requires_grad_()
    soft_cross_entropy(labels, student).backward()
    assert labels.grad is None
    torch.testing.assert_close(student.grad, 2.5 * U.softmax(1) - labels.detach())


def test_soft_labels_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"labels \[1, 2\] and student \[1, 3\] differ"):
        soft_cross_entropy(T[:, :2], U)


@pytest.mark.parametrize("temperature", [0, -1, math.nan, math.inf])
def test_temperature_must_be_positive_and_finite(temperature):
    with pytest.raises(ValueError, match="expected above 0"):
        distillation(T, U, temperature)


def test_unknown_reduction_is_refused():
    with pytest.raises(ValueError, match="'mean' or 'sum'"):
        activation_loss(T, "max")


def test_pairwise_diversity_by_hand():
    """eps (0, 0), (1, 1), z (0, 0, 0), (2, 0, 1): two of four pairs with 1 x 1, so exp(-1/2)."""
    noise = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    samples = torch.tensor([[0.0, 0.0, 0.0], [2.0, 0.0, 1.0]], dtype=torch.float64)
    assert pairwise_diversity_loss(noise, samples).item() == pytest.approx(0.6065306597, abs=1e-9)


def test_pairwise_diversity_falls_as_samples_part_and_sees_images_as_vectors():
    """Twice the distance squares exp(-d): .6065306597^2; [2, 3, 1, 1] images are [2, 3] vectors."""
    noise = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    images = torch.tensor([[0.0, 0.0, 0.0], [4.0, 0.0, 2.0]]).view(2, 3, 1, 1).requires_grad_()
    loss = pairwise_diversity_loss(noise, images)
    loss.backward()
    assert loss.item() == pytest.approx(0.6065306597**2, rel=1e-6)
    assert images.grad[1, 0].item() < 0 < images.grad[0, 0].item()


def test_pairwise_diversity_of_unequal_numbers_is_refused():
    with pytest.raises(ValueError, match="3 rows of noise, 2 samples"):
        pairwise_diversity_loss(torch.zeros(3, 2), torch.zeros(2, 4))


def test_jensen_shannon_divergence_of_the_worked_logits():
    """t against u: 0.0688689756; symmetric, and gradient reaches both."""
    first, second = T.clone().requires_grad_(), U.clone().requires_grad_()
    value = jensen_shannon_divergence(first, second)
    value.backward()
    assert value.item() == pytest.approx(0.0688689756, abs=1e-9)
    assert jensen_shannon_divergence(U, T).item() == pytest.approx(0.0688689756, abs=1e-9)
    assert first.grad.abs().sum() > 0
    assert second.grad.abs().sum() > 0


def test_jensen_shannon_divergence_of_opposites_is_log_two():
    far = torch.tensor([[1e4, 0.0]])
    assert jensen_shannon_divergence(far, far.flip(1)).item() == pytest.approx(math.log(2), abs=1e-6)
    with pytest.raises(ValueError, match="differ"):
        jensen_shannon_divergence(T, U[:, :2])


def test_cross_entropy_of_many_clients_at_once_is_each_ones():
    logits, labels = torch.randn(5, 7, 3), torch.randint(0, 3, (5, 7))
    one_by_one = [cross_entropy(*pair).item() for pair in zip(logits, labels, strict=True)]
    assert torch.vmap(cross_entropy)(logits, labels).tolist() == pytest.approx(one_by_one, rel=1e-6)
    batched, alone = (logits.clone().requires_grad_() for _ in range(2))
    torch.vmap(cross_entropy)(batched, labels).sum().backward()
    for pair in zip(alone, labels, strict=True):
        cross_entropy(*pair).backward()
    assert torch.equal(batched.grad, alone.grad)


@pytest.mark.slow
def test_cross_entropy_of_many_clients_loads_no_compiler():
    """torch's own, taken apart under vmap, imports sympy and a second's worth of other modules."""
    code = (
        "import sys, torch\n"
        "from rayfed_kd.toolbox.losses import cross_entropy\n"
        "logits = torch.randn(2, 3, 4, requires_grad=True)\n"
        "torch.vmap(cross_entropy)(logits, torch.zeros(2, 3, dtype=torch.int64)).sum().backward()\n"
        "sys.exit('sympy' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_label_options_are_torchs(smoothing):
    """Class weights and smoothing against `F.cross_entropy`, and alone for each row of a batch of clients."""
    logits, labels = torch.randn(6, 4, requires_grad=True), torch.tensor([0, 1, 1, 2, 0, 2])
    weights = torch.tensor([0.5, 2.0, 1.0, 3.0])
    extras = {"class_weights": weights, "label_smoothing": torch.tensor(smoothing)}
    wanted = torch.nn.functional.cross_entropy(logits, labels, weights, label_smoothing=smoothing)
    found = cross_entropy(logits, labels, extras)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(one, logits)[0] for one in (found, wanted)))
    of_two = {name: value.expand(2, *value.shape) for name, value in extras.items()}
    stacked = torch.func.vmap(cross_entropy)(torch.stack([logits, 2 * logits]), labels.expand(2, 6), of_two)
    torch.testing.assert_close(stacked[0], wanted)
    if not smoothing:  # a class that a model rules out
        ruled_out = torch.cat([logits[:, :3], torch.full((6, 1), -torch.inf)], dim=1)
        wanted = torch.nn.functional.cross_entropy(ruled_out, labels, weights)
        found = cross_entropy(ruled_out, labels, extras)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(*(torch.autograd.grad(one, logits)[0] for one in (found, wanted)))
