"""FedICT against hand-worked numbers; FedGKT as its special case, its class weights, its bytes."""

import pytest
import torch
from runs import ended, states_of
from small_recipes import LAYERED

from rayfed_kd.algorithms.fedict import FedICT, Options
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.toolbox.losses import distillation, weighted_distillation

SMALL = {**LAYERED, "method": {"name": "fedict", "cut": "C2", "server": {"name": "dense", "units": [8]}}}
H = 16 * 2 * 2
T, U = torch.tensor([[2.0, 0.0, -1.0]]).double(), torch.tensor([[1.0, 0.5, 0.0]]).double()
KD = 0.3816498482  # T^2 KL(t, u) at T = 3 (baselines, section 1)
# Two clients of as many samples: d^0 = (.7, .2, .1) and d^1 = (.1, .4, .5) make d^S (.4, .3, .3).
COUNTS = ([7.0, 2.0, 1.0], [1.0, 4.0, 5.0])
TOLD = {client: {"counts": torch.tensor(counts)} for client, counts in enumerate(COUNTS)}
SERVERS = "method={name: fedict, cut: C2, server: {name: dense, units: [8]}%s}"


class Sampled:
    """A client's context, as far as its classes go."""

    def label_counts(self):
        return torch.tensor(COUNTS[0])


def ran(*overrides):
    return ended(SMALL, *overrides)


def fpkd(**options):
    method = FedICT(Options(**options))
    return method.client_terms(method.client_extras(Sampled()))["fpkd"][1](T, U).item()


def lka(**options):
    return FedICT(Options(**options)).server_terms(0, TOLD)["lka"][1](T, U).item()


def test_weighted_terms_are_the_worked_numbers():
    """q_c log(q_c / p_c) at T 3, whose sum is KL(t, u)."""
    expected = [0.1643666082, -0.0520643696, -0.0698966999]
    found = [weighted_distillation(T, U, w, 3.0).item() / 9 for w in torch.eye(3).double()]
    assert found == pytest.approx(expected, abs=1e-9)
    assert sum(found) == pytest.approx(0.0424055387, abs=1e-9)


def test_fpkd_weighs_classes_by_the_softmax_of_their_shares():
    assert fpkd() == pytest.approx(0.3942996188, abs=1e-9)


def test_raw_weights_are_the_released_codes():
    """d^k / 3 at the client, (d^S - d^k) / 7 at the server, where the term is negative."""
    assert fpkd(weights="raw", fpkd_t=3.0) == pytest.approx(0.2929622454, abs=1e-9)
    assert lka(weights="raw", lka="balance", lka_u=7.0) == pytest.approx(-0.0880659764, abs=1e-9)


def test_balance_weighs_classes_by_the_softmax_of_what_the_client_lacks():
    """softmax(-.3, .1, .2) = (.2418..., .3607..., .3986...), by hand from the three exponentials."""
    e = [2.718281828459045**x for x in (-0.3, 0.1, 0.2)]
    terms = [0.1643666082, -0.0520643696, -0.0698966999]
    expected = 9 * sum(w / sum(e) * term for w, term in zip(e, terms, strict=True))
    assert lka(lka="balance") == pytest.approx(expected, abs=1e-8)


def test_sim_is_the_cosine_of_the_two_distributions_times_kd():
    """cos((.4, .3, .3), (.7, .2, .1)) = 0.8635060518."""
    assert lka() == pytest.approx(0.3295569536, abs=1e-9)
    assert lka() / KD == pytest.approx(0.8635060518, abs=1e-8)


def test_sim_with_equal_shares_is_kd():
    """d^k = d^S, also where the client has other numbers of samples."""
    told = {0: {"counts": torch.tensor(COUNTS[0])}, 1: {"counts": 3 * torch.tensor(COUNTS[0])}}
    for client in told:
        term = FedICT().server_terms(client, told)["lka"][1]
        assert term(T, U).item() == pytest.approx(distillation(T, U, 3.0).item(), rel=1e-6)


def test_uniform_class_weights_give_kd_divided_by_the_classes():
    teacher, own = (torch.randn(5, 3, generator=torch.Generator().manual_seed(s)) for s in (1, 2))
    found = weighted_distillation(teacher, own, torch.full((3,), 1 / 3), 3.0)
    torch.testing.assert_close(found, distillation(teacher, own, 3.0) / 3, rtol=1e-6, atol=1e-7)


def test_a_client_with_equal_shares_has_uniform_weights(monkeypatch):
    monkeypatch.setattr(Sampled, "label_counts", lambda self: torch.tensor([4.0, 4.0, 4.0]))
    assert fpkd() == pytest.approx(KD / 3, rel=1e-6)


def test_global_shares_are_of_all_samples_told_so_far():
    """7, 2, 1 and 1, 0, 3 of four more: (8, 2, 4) / 14; alone, d^S = d^k."""
    told = {0: {"counts": torch.tensor(COUNTS[0])}, 1: {"counts": torch.tensor([1.0, 0.0, 3.0])}}
    method = FedICT(Options(lka="balance", weights="raw"))
    expected = torch.tensor([8.0, 2.0, 4.0]).double() / 14 - torch.tensor([0.25, 0.0, 0.75]).double()
    found = method.server_terms(1, told)["lka"][1](T, U)
    torch.testing.assert_close(found, weighted_distillation(T, U, expected, 3.0))
    alone = method.server_terms(0, {0: told[0]})["lka"][1](T, U)
    assert alone.item() == 0.0


def test_gradient_reaches_the_student_alone():
    teacher, own = T.clone().requires_grad_(), U.clone().requires_grad_()
    weights = torch.tensor([0.5, 0.3, 0.2]).double()
    weighted_distillation(teacher, own, weights, 3.0).backward()
    assert teacher.grad is None
    q, p = (T / 3).softmax(1), (U / 3).softmax(1)
    expected = 3 * (p * (weights * q).sum() - weights * q)  # d/dz of -T^2 sum_c w_c q_c log p_c
    torch.testing.assert_close(own.grad, expected)


@pytest.mark.parametrize(
    ("teacher", "weights"), [(torch.zeros(1, 2), torch.ones(3)), (torch.zeros(1, 3), torch.ones(2))]
)
def test_weighted_distillation_refuses_other_shapes(teacher, weights):
    with pytest.raises(ValueError, match=r"differ|weights are \[2\], expected \[3\]"):
        weighted_distillation(teacher, torch.zeros(1, 3), weights)


def test_without_its_own_terms_it_is_fedgkt_bit_for_bit():
    """lambda = mu = 0, beta = alpha; server epochs given, as the two have other defaults."""
    same = "method.server_epochs=2"
    ours = ran(SERVERS % ", lambda_fpkd: 0.0, mu_lka: 0.0, beta: 0.7", same)
    theirs = ran((SERVERS % ", alpha: 0.7").replace("fedict", "fedgkt"), same)
    assert torch.equal(ours.models["server"].vector, theirs.models["server"].vector)
    for client, state in states_of(theirs).items():
        assert torch.equal(states_of(ours)[client].model, state.model)
        assert torch.equal(states_of(ours)[client].knowledge, state.knowledge)
    assert [r.tables["metrics"] for r in ours.recorder] == [r.tables["metrics"] for r in theirs.recorder]


@pytest.mark.parametrize(
    "option", ["lambda_fpkd: 0.0", "mu_lka: 0.0", "lka: balance", "weights: raw", "beta: 0.0"]
)
def test_every_term_has_its_effect(option):
    """A weight of 0 leaves a term out, and each form is another run."""
    default = ran(SERVERS % ", server_epochs: 1").models["server"].vector
    assert not torch.equal(ran(SERVERS % f", {option}").models["server"].vector, default)


def test_counts_travel_once_beside_fedgkts_parts():
    """Up 4 n H + 4 n C, the first time 8 n and 4 C; down 4 n C."""
    simulated = ran("rounds=4")
    sizes, seen = simulated.setting.partition.sizes, set()
    for record in simulated.recorder:
        rows = record.tables["messages"]
        cohort = {row["client"] for row in rows}
        n, new = int(sum(sizes[k] for k in cohort)), cohort - seen
        seen |= cohort
        counted = [row["bytes"] for row in rows if (row["direction"], row["kind"]) == ("up", "counts")]
        assert counted == [4 * 3] * len(new)
        first = sum(8 * int(sizes[k]) + 4 * 3 for k in new)
        row = record.tables["rounds"][0]
        assert (row["bytes_up"], row["bytes_down"]) == (4 * n * (H + 3) + first, 4 * n * 3)


def test_clients_labels_and_class_counts_reach_the_server_and_stay():
    simulated = ran("rounds=4")
    dataset, partition = simulated.setting.dataset, simulated.setting.partition
    assert simulated.servers[0].told.keys() < simulated.servers[-1].told.keys()
    for client, told in simulated.servers[-1].told.items():
        labels = torch.from_numpy(dataset.train.labels[partition.train[client]])
        assert torch.equal(told["labels"], labels)
        assert told["counts"].tolist() == torch.bincount(labels, minlength=3).tolist()


def test_m1_is_cut_at_its_flatten_layer_as_fedd2s_has_it():
    """512 numbers a sample at 32x32; the server's F1 to F3: 16,416 + 528 + 170 parameters."""
    data = "data={name: synthetic, samples: 12, classes: 10, shape: [3, 32, 32]}"
    setting = prepare(
        SMALL, [data, "method={name: fedict, cut: C3, server: {name: dense, units: [32, 16]}}"]
    ).setting
    module_pool = setting.module_pool()
    server = module_pool.lend("server", module_pool.initial_vector("server"))
    assert server.num_parameters == 16_416 + 528 + 170
    client = module_pool.lend("model", module_pool.initial_vector("model")).freeze()
    hidden = client.between(0, client.module.layers["C3"], torch.zeros(2, 3, 32, 32))
    assert hidden.shape == (2, 512)
    assert server(hidden).shape == (2, 10)
