"""FedKD: both losses by hand, who gets which gradient, the identities, what travels."""

from types import SimpleNamespace

import pytest
import torch
from runs import run_in_process
from torch.nn import functional as F

from rayfed_kd.algorithms.fedkd import FedKD, Options
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.toolbox.local_training import train_on_labels
from rayfed_kd.toolbox.low_rank import matrix_places

MENTOR = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
MENTEE = torch.tensor([[1.0, 0.5, 0.0]], dtype=torch.float64)
BATCH = {"images": None, "labels": torch.tensor([0])}
ALL = "sampling.fraction=1.0"


def models(mentor=MENTOR, mentee=MENTEE, h_t=None, h_s=None, mapping=None):
    def of(logits, features):
        return SimpleNamespace(features=lambda images: features, classify=lambda features: logits)

    return {"mentor": of(mentor, h_t), "mentee": of(mentee, h_s), "map": lambda h: h @ mapping.T}


def test_both_losses_by_hand():
    """Mentor (2, 0, -1), mentee (1, .5, 0), label 0: S 0.8501156902, KL(s, t) / S and KL(t, s) / S."""
    loss = FedKD(Options(hidden=0.0)).loss(models(), BATCH, {})
    assert loss.logged["ce"].item() == pytest.approx(0.1698460196, abs=1e-9)
    assert loss.logged["mentee_ce"].item() == pytest.approx(0.6802696706, abs=1e-9)
    expected = 0.8501156902 + 0.3799690179 + 0.3000894145
    assert loss.value.item() == pytest.approx(expected, abs=1e-9)


def test_features_by_hand():
    """h_t (3, 1), W h_s (1, 2): mean of 4 and 1 in both losses, over S."""
    h_t, h_s = torch.tensor([[3.0, 1.0]]).double(), torch.tensor([[1.0]]).double()
    mapping = torch.tensor([[1.0], [2.0]]).double()
    made = models(h_t=h_t, h_s=h_s, mapping=mapping)
    loss = FedKD(Options(distill=0.0, hidden=0.5)).loss(made, BATCH, {})
    assert loss.logged["hidden"].item() == pytest.approx(2.5)
    assert loss.value.item() == pytest.approx(0.8501156902 + 0.5 * 2 * 2.5 / 0.8501156902, abs=1e-9)


def test_each_loss_reaches_its_own_model_and_the_mentees_the_map():
    """By autograd of each loss alone, with all of the other model as numbers."""
    z_t, z_s = (z.clone().requires_grad_() for z in (MENTOR, MENTEE))
    h_t = torch.tensor([[3.0, 1.0]]).double().requires_grad_()
    h_s = torch.tensor([[1.0, 4.0]]).double().requires_grad_()
    mapping = torch.tensor([[1.0, 0.5], [2.0, -1.0]]).double().requires_grad_()
    FedKD(Options()).loss(models(z_t, z_s, h_t, h_s, mapping), BATCH, {}).value.backward()
    found = [leaf.grad.clone() for leaf in (z_t, h_t, z_s, h_s, mapping)]
    intensity = 0.8501156902

    def log(z):
        return z.log_softmax(1)

    def mentor():
        kl = F.kl_div(log(z_t), log(z_s.detach()), reduction="batchmean", log_target=True)
        apart = ((h_t - (h_s @ mapping.T).detach()) ** 2).mean()
        return F.cross_entropy(z_t, BATCH["labels"]) + (kl + apart) / intensity

    def mentee():
        kl = F.kl_div(log(z_s), log(z_t.detach()), reduction="batchmean", log_target=True)
        apart = ((h_t.detach() - h_s @ mapping.T) ** 2).mean()
        return F.cross_entropy(z_s, BATCH["labels"]) + (kl + apart) / intensity

    expected = [
        *torch.autograd.grad(mentor(), (z_t, h_t)),
        *torch.autograd.grad(mentee(), (z_s, h_s, mapping)),
    ]
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other)


def test_gradient_passes_through_the_intensity_if_it_shall():
    grads = []
    for detach in (True, False):
        z = MENTOR.clone().requires_grad_()
        options = Options(hidden=0.0, detach_intensity=detach)
        FedKD(options).loss(models(mentor=z), BATCH, {}).value.backward()
        grads.append(z.grad)
    hard = MENTOR.softmax(1) - F.one_hot(BATCH["labels"], 3)
    through = -(0.3799690179 + 0.3000894145) / 0.8501156902 * hard
    torch.testing.assert_close(grads[1] - grads[0], through)


def test_without_terms_and_with_all_energy_the_mentee_is_fedavgs_and_the_mentor_alone(small):
    """Sums of differences round otherwise than sums of weights; the mentors' labels alone to the bit."""
    off = {"name": "fedkd", "distill": 0.0, "hidden": 0.0, "energy_start": 1.0, "energy_end": 1.0}
    mine = run_in_process({**small, "method": off}, "rounds=2")
    plain = run_in_process({**small, "method": {"name": "fedavg", "weighting": "uniform"}}, "rounds=2")
    torch.testing.assert_close(
        torch.as_tensor(mine.models["mentee"]), torch.as_tensor(plain.models["global"]), atol=2e-6, rtol=1e-4
    )


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_mentor_without_terms_trains_on_its_labels_alone_bit_for_bit(weight, small, client_states, bench):
    """And with them it does not."""
    method = {"name": "fedkd", "distill": weight, "hidden": weight}
    states = client_states({**small, "method": method}, "rounds=1", ALL)
    ctx = bench(method).client(2)
    student = ctx.model(ctx.own_initial_vector())
    train_on_labels(student, ctx)
    assert torch.equal(states[2].mentor, student.vector()) == (not weight)


def test_copies_of_the_mentee_are_equal_at_all_clients_and_the_server(small, client_states):
    """After three rounds of all, each client holds the mentee that the server had before its last update."""
    method = {"name": "fedkd", "energy_start": 0.5, "energy_end": 0.6}
    states = client_states({**small, "method": method}, "rounds=3", ALL)
    before = run_in_process({**small, "method": {**method, "energy_end": 0.5 + 0.1 * 2 / 3}}, "rounds=2", ALL)
    for state in states:
        assert state.mentee.version == 2
        assert torch.equal(state.mentee.vector, torch.as_tensor(before.models["mentee"]))


def test_bytes_are_those_of_the_factors(small, client_states):
    """The mentee goes down at first, then its update; 4 bytes for the rank of each matrix."""
    recipe = {**small, "method": {"name": "fedkd", "energy_start": 0.5, "energy_end": 0.5}}
    result = run_in_process(recipe, "rounds=2", ALL)
    size, first, second = result.models["mentee"].size, {}, {}
    for row in result.rows["messages"]:
        (first if row["round"] == 1 else second)[row["client"], row["direction"], row["kind"]] = row["bytes"]
    flat = prepare(recipe).setting.module_pool()
    model = flat.lend("model", flat.initial_vector("model"))
    ranks = 4 * len(matrix_places(model))
    for client in range(5):
        assert first[client, "down", "weights"] == 4 * size
        assert first[client, "up", "weights"] < 4 * size / 2
        assert first[client, "up", "counts"] == second[client, "down", "counts"] == ranks
        assert second[client, "down", "weights"] < 4 * size


def test_client_that_missed_a_round_receives_the_mentee_whole(small):
    """Clients drawn one at a time: the second time that one is drawn, it has missed rounds, or none."""
    recipe = {**small, "method": {"name": "fedkd", "energy_start": 0.3, "energy_end": 0.3}}
    result = run_in_process(recipe, "rounds=6", "sampling={count: 1}")
    size, seen = 4 * result.models["mentee"].size, {}
    for index in range(1, 7):
        (client,) = {row["client"] for row in result.rows["messages"] if row["round"] == index}
        rows = [row for row in result.rows["messages"] if row["round"] == index]
        down = sum(row["bytes"] for row in rows if row["direction"] == "down" and row["kind"] == "weights")
        missing = index - 1 - seen.get(client, -9)
        assert (down == size) == (missing > 1)
        seen[client] = index - 1


def test_energy_rises_over_the_rounds(bench):
    """T of round t of R is T_start + (T_end - T_start) (t - 1) / R."""
    table = bench({"name": "fedkd", "energy_start": 0.5, "energy_end": 0.9}, "rounds=4")
    asked = []

    def scatter(step, messages):
        asked.append(messages[3]["energy"])
        raise StopIteration

    cohort = SimpleNamespace(clients=[3], scatter=scatter)
    for index in range(1, 5):
        server = table.method.init_server(table.server(0))
        with pytest.raises(StopIteration):
            table.method.run_round(server, cohort, table.server(index))
    assert asked == pytest.approx([0.5, 0.6, 0.7, 0.8])
