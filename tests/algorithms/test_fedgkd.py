"""FedGKD: the buffer, the loss by hand, the identity with FedAvg, what travels."""

import pytest
import torch

from rayfed_kd.algorithms.fedgkd import FedGKD, Options, ServerState
from rayfed_kd.toolbox.losses import cross_entropy

# Section 1 of the comparison methods' notes: t = (2, 0, -1), u = (1, 0.5, 0), label 0.
T = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
U = torch.tensor([[1.0, 0.5, 0.0]], dtype=torch.float64)
LENET5 = 21_386  # parameters for 8x8 digits


@pytest.mark.parametrize(("buffer", "expected"), [(1, [1, 2, 6]), (2, [1, 1.5, 4]), (3, [1, 1.5, 3])])
def test_teacher_is_the_mean_of_the_last_global_models(buffer, expected, made_replies):
    """Globals 1, 2, 6: M = 3 gives 3, M = 2 gives 4; the buffer grows, it starts with w^0 alone."""
    method, one = FedGKD(Options(buffer=buffer)), torch.ones(1)
    server = ServerState((one,), one)
    teachers = [server.teacher.item()]
    for value in (2.0, 6.0):
        server = method.absorb(server, made_replies(({"student": [value]}, 3)), None)
        teachers.append(server.teacher.item())
    assert teachers == pytest.approx(expected)
    assert len(server.recent) == min(3, buffer)
    assert server.version == 2


def test_loss_by_hand():
    """gamma .2, T 2 on the numbers above: 0.6802696706 + 0.2 x 0.3652279757."""
    method = FedGKD(Options(gamma=0.2, temperature=2.0))
    loss = cross_entropy(U, torch.tensor([0])) + 0.2 * method._distillation(T, U)
    assert loss.item() == pytest.approx(0.6802696706 + 0.2 * 0.3652279757, abs=1e-9)


def test_double_softmax_is_the_released_arithmetic_of_kdia():
    """1.0595782121 at T = 2, gradient (-0.0480827802, 0.0221732481, 0.0259095337): 8.71 times shorter."""
    student = U.clone().requires_grad_()
    other = U.clone().requires_grad_()
    released = FedGKD(Options(temperature=2.0, loss="double_softmax"))._distillation(T, student)
    released.backward()
    FedGKD(Options(temperature=2.0))._distillation(T, other).backward()
    assert released.item() == pytest.approx(1.0595782121, abs=1e-9)
    expected = torch.tensor([[-0.0480827802, 0.0221732481, 0.0259095337]], dtype=torch.float64)
    assert torch.allclose(student.grad, expected, atol=1e-9)
    assert (other.grad.norm() / student.grad.norm()).item() == pytest.approx(8.71, abs=0.01)


def test_gamma_zero_is_fedavg_bit_for_bit(train):
    ours, plain = train({"name": "fedgkd", "gamma": 0.0}), train({"name": "fedavg"})
    assert torch.equal(ours["global"], plain["global"])


@pytest.mark.parametrize("buffer", [1, 5])
def test_term_is_left_out_in_the_first_round_and_there_after_it(buffer, run_small, losses):
    logged = losses(run_small({"name": "fedgkd", "buffer": buffer}))
    assert ["kd" in entry for entry in logged] == [False, True, True]


def test_term_with_buffer_one_is_zero_with_zero_gradient_before_the_first_step(bench):
    """Teacher and student are then one model; with BatchNorm they differ by their mode, LeNet has none."""
    ctx = bench({"name": "fedgkd"}).server()
    initial = ctx.initial_vector()
    student, teacher = ctx.model(initial), ctx.frozen_model(initial)
    images = torch.randn(6, 1, 8, 8)
    term = FedGKD(Options())._distillation(teacher(images), student(images))
    term.backward()
    assert term.item() == pytest.approx(0.0, abs=1e-7)
    assert student.gradients.abs().max() < 1e-7
    assert teacher.gradients.abs().max() == 0


def test_half_is_half_of_gamma(train):
    half = train({"name": "fedgkd", "gamma": 0.5, "half": True})
    whole = train({"name": "fedgkd", "gamma": 0.25})
    other = train({"name": "fedgkd", "gamma": 0.5})
    assert torch.equal(half["global"], whole["global"])
    assert not torch.equal(half["global"], other["global"])


@pytest.mark.parametrize(("buffer", "models"), [(1, (1, 1, 1)), (2, (1, 2, 2))])
def test_teacher_travels_where_it_is_another_model(buffer, models, run_small):
    """Three clients a round; the first round's teacher is the model itself."""
    rows = run_small({"name": "fedgkd", "buffer": buffer}).tables["rounds"].to_pylist()
    assert [row["bytes_down"] for row in rows] == [3 * 4 * LENET5 * n for n in models]
    assert [row["bytes_up"] for row in rows] == [3 * 4 * LENET5] * 3
