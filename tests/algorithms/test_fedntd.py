"""FedNTD: the term by hand, the identities with FedAvg, what the teacher is."""

import pytest
import torch
from torch.nn import functional as F

from rayfed_kd.algorithms.fedntd import FedNTD, Options, not_true
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.models.flat_module import FlatModule

TEACHER = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
STUDENT = torch.tensor([[1.0, 0.5, 0.0]], dtype=torch.float64)
LABELS = torch.tensor([0])


def loss_of(student, teacher, **options):
    """The method's loss of models that give these logits."""
    models = {"student": lambda images: student, "teacher": lambda images: teacher}
    return FedNTD(Options(**options)).loss(models, {"images": None, "labels": LABELS}, {})


@pytest.mark.parametrize(
    ("tau", "term", "gradient"),
    [(1.0, 0.0263445860, 0.1085992474), (2.0, 0.0299090740, None), (3.0, 0.0306436604, 0.1229991697)],
)
def test_term_and_gradient_by_hand(tau, term, gradient):
    """Classes 1 and 2 are left: teacher (0, -1), student (.5, 0). Without the deletion KL is 0.2551107197."""
    z = STUDENT.clone().requires_grad_()
    loss = loss_of(z, TEACHER, tau=tau)
    assert loss.logged["ntd"].item() == pytest.approx(term, abs=1e-9)
    loss.logged["ntd"].backward()
    assert z.grad[0, 0] == 0
    if gradient is not None:
        assert z.grad[0].tolist() == pytest.approx([0.0, -gradient, gradient], abs=1e-9)


def test_whole_loss_by_hand():
    """CE of (1, .5, 0) and label 0 is 0.6802696706."""
    assert loss_of(STUDENT, TEACHER).value.item() == pytest.approx(0.7066142566, abs=1e-9)
    assert loss_of(STUDENT, TEACHER, beta=2.0).value.item() == pytest.approx(
        0.6802696706 + 2 * 0.0263445860, abs=1e-9
    )


def test_teachers_logit_of_the_samples_own_class_is_of_no_account():
    moved = TEACHER + torch.tensor([[7.0, 0.0, 0.0]])
    assert loss_of(STUDENT, moved).value == loss_of(STUDENT, TEACHER).value


def test_term_is_that_of_logits_with_the_label_masked_out():
    """A second formula: the label's logit at minus infinity has probability 0 on both sides."""
    stream = torch.Generator().manual_seed(3)
    z, g = (torch.randn(9, 6, generator=stream, dtype=torch.float64) for _ in range(2))
    labels = torch.randint(6, (9,), generator=stream)
    hidden = F.one_hot(labels, 6).bool()
    p, q = ((logits / 2).masked_fill(hidden, -torch.inf).softmax(1) for logits in (z, g))
    expected = 4 * torch.where(hidden, 0.0, q * (q / p).log()).sum(1).mean()
    models = {"student": lambda images: z, "teacher": lambda images: g}
    loss = FedNTD(Options(tau=2.0)).loss(models, {"images": None, "labels": labels}, {})
    torch.testing.assert_close(loss.logged["ntd"], expected)


def test_not_true_deletes_each_rows_own_class():
    logits = torch.arange(12.0).view(3, 4)
    left = not_true(logits, torch.tensor([0, 2, 3]))
    assert left.tolist() == [[1, 2, 3], [4, 5, 7], [8, 9, 10]]


def test_gradient_reaches_the_student_only():
    teacher = TEACHER.clone().requires_grad_()
    loss_of(STUDENT.clone().requires_grad_(), teacher).value.backward()
    assert teacher.grad is None


def test_beta_zero_is_fedavg_bit_for_bit(train):
    ntd, plain = train({"name": "fedntd", "beta": 0.0}), train({"name": "fedavg"})
    assert torch.equal(ntd["global"], plain["global"])
    assert not torch.equal(train({"name": "fedntd"})["global"], plain["global"])


def test_two_classes_which_would_be_fedavg_are_refused():
    """One class is left: its softmax is 1 on both sides, the term 0 and without gradient."""
    two = "data={name: synthetic, samples: 80, classes: 2, shape: [1, 8, 8]}"
    with pytest.raises(RecipeError, match="fedntd on two classes is fedavg; expected three or more"):
        prepare("quickstart", [two, "method={name: fedntd}"])
    assert prepare("quickstart", [two, "method={name: fedntd, beta: 0.0}"])
    assert loss_of(STUDENT[:, :2], TEACHER[:, :2]).logged["ntd"] == 0


def test_first_step_of_a_round_is_fedavgs_and_the_second_is_not(train):
    """Student and teacher are one model before the first step, so the term has gradient zero."""
    whole = ("model={name: mlp}", "rounds=1", "local.batch_size=10000")
    for epochs, same in ((1, True), (2, False)):
        changes = (*whole, f"local.epochs={epochs}")
        ntd, plain = train({"name": "fedntd"}, *changes), train({"name": "fedavg"}, *changes)
        assert torch.allclose(ntd["global"], plain["global"], rtol=0, atol=1e-7) == same


def test_teacher_is_the_received_model_frozen_and_in_eval_mode(bench, monkeypatch):
    table = bench({"name": "fedntd"}, "model={name: bottleneck_resnet, width: 2}")
    modes = []
    original = FlatModule.__call__

    def call(self, *inputs):
        modes.append((self.module.training, self.parameters()[0].requires_grad))
        return original(self, *inputs)

    monkeypatch.setattr(FlatModule, "__call__", call)
    table.exchange(table.method.init_server(table.server()), [0])
    assert modes[:2] == [(True, True), (False, False)]
