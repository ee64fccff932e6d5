"""FML: both losses by hand, who gets which gradient, the identities, what travels."""

import pytest
import torch
from runs import run_in_process

from rayfed_kd.algorithms.fml import FML, Options, mutual_loss
from rayfed_kd.toolbox.local_training import train_on_labels

TEACHER = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
STUDENT = torch.tensor([[1.0, 0.5, 0.0]], dtype=torch.float64)
LABELS = torch.tensor([0])
PRIVATE_LOSS, MEME_LOSS = 0.4676901952, 0.2464318218


def test_both_losses_by_hand():
    """Private (1, .5, 0), meme (2, 0, -1), label 0: half of CE and half of KL from the other."""
    private, parts = mutual_loss(STUDENT, TEACHER, LABELS, 0.5)
    assert private.item() == pytest.approx(PRIVATE_LOSS, abs=1e-9)
    assert parts["ce"].item() == pytest.approx(0.6802696706, abs=1e-9)
    assert parts["kd"].item() == pytest.approx(0.2551107197, abs=1e-9)
    assert mutual_loss(TEACHER, STUDENT, LABELS, 0.5)[0].item() == pytest.approx(MEME_LOSS, abs=1e-9)


@pytest.mark.parametrize(("share", "names"), [(0.0, {"kd"}), (0.3, {"ce", "kd"}), (1.0, {"ce"})])
def test_part_without_weight_is_left_out(share, names):
    assert set(mutual_loss(STUDENT, TEACHER, LABELS, share)[1]) == names


def test_each_loss_reaches_its_own_model_only():
    """The gradient of the sum is that of each loss with the other's logits as numbers."""
    leaves = [tensor.clone().requires_grad_() for tensor in (STUDENT, TEACHER)]
    models = {name: lambda images, z=z: z for name, z in zip(("private", "meme"), leaves, strict=True)}
    both = FML(Options(alpha=0.3, beta=0.8)).loss(models, {"images": None, "labels": LABELS}, {})
    both.value.backward()
    for own, other, share in ((0, 1, 0.3), (1, 0, 0.8)):
        z = leaves[own].detach().clone().requires_grad_()
        mutual_loss(z, leaves[other].detach(), LABELS, share)[0].backward()
        torch.testing.assert_close(leaves[own].grad, z.grad)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_beta_one_gives_fedavgs_model_as_the_meme_bit_for_bit(alpha, weighting, bench, train):
    method = {"name": "fml", "alpha": alpha, "beta": 1.0, "weighting": weighting}
    meme = bench(method, "rounds=2").run()["meme"].vector
    plain = train({"name": "fedavg", "weighting": weighting}, "rounds=2")["global"]
    assert torch.equal(meme, plain)


def test_alpha_one_trains_the_private_model_on_its_labels_alone_bit_for_bit(bench):
    for alpha, same in ((1.0, True), (0.5, False)):
        table = bench({"name": "fml", "alpha": alpha})
        table.exchange(table.method.init_server(table.server()), [2])
        ctx = table.client(2)
        student = ctx.model(ctx.own_initial_vector())
        train_on_labels(student, ctx)
        assert torch.equal(table.states[2], student.vector()) == same


def test_private_models_start_unlike_the_meme_and_unlike_one_another(bench):
    table = bench({"name": "fml"})
    states = [table.method.init_client(table.client(client)) for client in (0, 1)]
    meme = table.method.init_server(table.server())
    assert not torch.equal(states[0], states[1])
    assert not torch.equal(states[0], meme)


def test_private_models_of_other_architectures_keep_their_own_and_the_meme_is_the_recipes(small):
    """lenet5 is the meme: its 4 P_g bytes travel, whatever the private model is."""
    recipe = {**small, "method": {"name": "fml"}, "client_models": {"models": [{"name": "mlp", "hidden": 7}]}}
    result = run_in_process(recipe, "rounds=1")
    size = result.models["meme"].size
    rows = [row for row in result.rows["messages"] if row["kind"] == "weights"]
    assert {row["bytes"] for row in rows} == {4 * size}
    assert {row["model"] for row in result.rows["metrics"]} == {"meme", "personal"}
